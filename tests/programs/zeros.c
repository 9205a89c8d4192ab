/* Reads memory that nothing was stored to, more of it than there may be in memory and out of it together, and
 * stores zeros over what was stored.
 *   zeros MIB */
#include "common.h"

static void check(volatile uint64_t *words, size_t bytes, uint64_t marked)
{
    for (size_t at = 0; at < bytes / 8; at += PAGE / 8) {
        uint64_t expected = marked && at / (PAGE / 8) % marked == 0 ? at + 1 : 0;
        CHECK(words[at] == expected, "the word at %zu is %llu, not %llu", at * 8,
              (unsigned long long)words[at], (unsigned long long)expected);
    }
}

static void use(uint64_t *words, size_t bytes)
{
    check(words, bytes, 0);
    for (size_t at = 0; at < bytes / 8; at += 100 * PAGE / 8)
        words[at] = at + 1;
    for (int turn = 0; turn < 2; turn++)
        check(words, bytes, 100);
    /* A part is stored to as a whole, and is zeros again. */
    memset(words, 1, bytes / 16);
    memset(words, 0, bytes);
    check(words, bytes, 0);
}

int main(int argc, char **argv)
{
    size_t bytes = strtoull(argc > 1 ? argv[1] : "256", NULL, 0) * MIB;
    uint64_t *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED, "mmap: %s", strerror(errno));
    use(mapped, bytes);
    SYS(munmap(mapped, bytes));
    uint64_t *block = calloc(1, bytes);
    CHECK(block, "calloc: %s", strerror(errno));
    use(block, bytes);
    free(block);
    /* A right to load is enough. */
    mapped = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapped != MAP_FAILED, "mmap: %s", strerror(errno));
    check(mapped, bytes, 0);
    puts("ok");
    return 0;
}
