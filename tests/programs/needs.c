/* A program that allocates more than it needs.
 *   needs ALL HOT SECONDS   fills ALL MiB of memory, uses HOT MiB of it at random for SECONDS, and then
 *                           verifies all of it; says how often it used a page in the time */
#include "common.h"
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Half of each page has values that do not compress. */
static uint64_t value(size_t page, int word)
{
    uint64_t mixed = (page * 256 + word) * 0x9E3779B97F4A7C15u;
    return word < 256 ? mixed ^ mixed >> 29 : page;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: needs ALL HOT SECONDS");
    size_t pages = atol(argv[1]) * MIB / PAGE, hot = atol(argv[2]) * MIB / PAGE;
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t *base = (uint64_t *)SYS(mmap(NULL, pages * PAGE, prot, flags, -1, 0));
    for (size_t page = 0; page < pages; page++)
        for (int word = 0; word < 512; word++)
            base[page * 512 + word] = value(page, word);
    struct rng rng = rng_new(1, 2);
    double end = now() + atof(argv[3]);
    uint64_t uses = 0;
    while (now() < end)
        for (int turn = 0; turn < 1000; turn++, uses++) {
            size_t page = rng_below(&rng, hot);
            int word = rng_below(&rng, 512);
            uint64_t is = base[page * 512 + word];
            CHECK(is == value(page, word), "page %zu, word %d has %#lx", page, word, is);
        }
    for (size_t page = 0; page < pages; page++)
        for (int word = 0; word < 512; word += 51)
            CHECK(base[page * 512 + word] == value(page, word), "page %zu, word %d", page, word);
    printf("%lu uses\n", uses);
    return 0;
}
