/* Keeps anonymous memory until SIGTERM, and checks then that all of it is as it was.
 *   keeps MIB still   stores to all of it once, says "ready", and does nothing more
 *   keeps MIB passes  then checks it page by page, again and again, at most 20,000 pages in a second
 * Says "whole" at the end. The memory does not compress. */
#include "common.h"

static volatile sig_atomic_t ends;

static void end(int signal)
{
    (void)signal;
    ends = 1;
}

static uint64_t expected(size_t word)
{
    uint64_t x = word * 0x9e3779b97f4a7c15u;
    return (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: keeps MIB still|passes");
    size_t words = (size_t)atol(argv[1]) * MIB / sizeof(uint64_t), in_page = PAGE / sizeof(uint64_t);
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    uint64_t *base = mmap(NULL, words * sizeof *base, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(base != MAP_FAILED, "mmap: %s", strerror(errno));
    for (size_t word = 0; word < words; word++)
        base[word] = expected(word);
    printf("ready\n");
    fflush(stdout);
    bool passes = strcmp(argv[2], "passes") == 0;
    while (!ends) {
        for (size_t word = 0; passes && word < words && !ends; word += in_page) {
            CHECK(base[word] == expected(word), "word %zu is %#lx", word, (long)base[word]);
            if (word / in_page % 20 == 0)
                usleep(1000);
        }
        if (!passes)
            usleep(50000);
    }
    for (size_t word = 0; word < words; word++)
        CHECK(base[word] == expected(word), "word %zu is %#lx", word, (long)base[word]);
    printf("whole\n");
    return 0;
}
