/* What the programs about forked children share: memory of the size that the command line gives, whose words
 * follow from a seed, and checks of the memory, of its size and of a child's end.
 *
 * A program is called as MODE MIB [RESIDENT_MIB]: the size of the memory, and how much a process may have
 * resident at most, if that is given. */
#ifndef FORKED_H
#define FORKED_H

#include "common.h"

/* The memory, private and anonymous, and its size in bytes. */
static size_t len;
static uint8_t *base;

/* A word of a page. Every third page is of one word, every third compresses, and every third does not. */
static uint64_t word(uint64_t seed, size_t page, size_t nth)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + page;
    if (page % 3 == 0)
        return x;
    if (page % 3 == 1)
        return nth % 8 == 0 ? x + nth : x;
    x += nth * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 29;
}

static void fill(uint64_t seed, size_t from, size_t to)
{
    for (size_t page = from; page < to; page++)
        for (size_t nth = 0; nth < 512; nth++)
            ((uint64_t *)(base + page * 4096))[nth] = word(seed, page, nth);
}

static void check(uint64_t seed, size_t from, size_t to, const char *who)
{
    for (size_t page = from; page < to; page++)
        for (size_t nth = 0; nth < 512; nth++) {
            uint64_t is = ((uint64_t *)(base + page * 4096))[nth];
            CHECK(is == word(seed, page, nth), "%s: page %zu, word %zu: %#lx", who, page, nth, is);
        }
}

/* How many bytes this process may have resident at most; 0: any number. */
static size_t most_resident;

UNUSED static void check_resident(const char *who)
{
    size_t pages, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%zu %zu", &pages, &resident) == 2, "statm");
    fclose(file);
    CHECK(most_resident == 0 || resident * 4096 <= most_resident, "%s: %zu pages", who, resident);
}

/* Waits for the child, which must exit with status 42. */
static void succeeded(pid_t child, const char *what)
{
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "%s: the wait status is %#x", what, status);
}

/* Maps the memory of the size that the command line gives. Returns MODE. */
static const char *begin(int argc, char **argv)
{
    CHECK(argc == 3 || argc == 4, "usage: %s MODE MIB [RESIDENT_MIB]", program_invocation_short_name);
    most_resident = argc == 4 ? strtoul(argv[3], NULL, 10) << 20 : 0;
    len = strtoul(argv[2], NULL, 10) << 20;
    base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap");
    return argv[1];
}

/* Unmaps the memory, and says that all was right. */
static void finish(void)
{
    SYS(munmap(base, len));
    puts("ok");
}

#endif
