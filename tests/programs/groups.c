/* Two files, anonymous memory and a block of the heap, each of which is checked three times and stays
 * mapped to the end, for tests of memory groups.
 *   groups FIRST SECOND MIB        makes the files, anonymous memory and the block, of MIB each, and checks
 *                                  them
 *   groups child FIRST SECOND MIB  checks them in a forked child, too, and then once more in the parent */
#include "common.h"

static uint64_t expected(uint64_t seed, size_t page)
{
    return (seed * 0x9E3779B97F4A7C15u ^ page * 0xC2B2AE3D27D4EB4Fu) | 1;
}

static void fill(uint64_t *words, uint64_t seed, size_t page)
{
    words[0] = expected(seed, page);
    /* Values that do not compress. */
    for (size_t at = 1; at < PAGE / sizeof *words; at++)
        words[at] = words[at - 1] * 0x5851F42D4C957F2Du + seed;
}

static void check(const uint64_t *words, uint64_t seed, size_t page)
{
    CHECK(words[0] == expected(seed, page), "page %zu of %lu has %#lx", page, seed, words[0]);
    for (size_t at = 1; at < PAGE / sizeof *words; at += 85)
        CHECK(words[at] == words[at - 1] * 0x5851F42D4C957F2Du + seed, "page %zu of %lu", page, seed);
}

static uint8_t *file(const char *path, size_t bytes, uint64_t seed)
{
    uint64_t words[PAGE / sizeof(uint64_t)];
    int fd = SYS(open(path, O_RDWR | O_CREAT | O_TRUNC, 0644));
    for (size_t page = 0; page < bytes / PAGE; page++) {
        fill(words, seed, page);
        CHECK(pwrite(fd, words, PAGE, page * PAGE) == (ssize_t)PAGE, "write: %s", strerror(errno));
    }
    SYS(fsync(fd));
    SYS(close(fd));
    fd = SYS(open(path, O_RDONLY));
    uint8_t *at = (uint8_t *)SYS(mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0));
    SYS(close(fd));
    return at;
}

static void check_all(uint8_t *const *parts, size_t bytes)
{
    for (int round = 0; round < 3; round++)
        for (size_t part = 0; part < 4; part++)
            for (size_t page = 0; page < bytes / PAGE; page++)
                check((const uint64_t *)(parts[part] + page * PAGE), part + 1, page);
}

int main(int argc, char **argv)
{
    bool forks = argc == 5 && strcmp(argv[1], "child") == 0;
    CHECK(argc == 4 || forks, "usage: groups [child] FIRST SECOND MIB");
    argv += forks;
    size_t bytes = strtoul(argv[3], NULL, 10) * MIB;
    int rights = PROT_READ | PROT_WRITE;
    void *anonymous = (void *)SYS(mmap(NULL, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    void *block = aligned_alloc(PAGE, bytes);
    uint8_t *parts[4] = {file(argv[1], bytes, 1), file(argv[2], bytes, 2), anonymous, block};
    CHECK(block != NULL, "aligned_alloc: %s", strerror(errno));
    for (size_t part = 2; part < 4; part++)
        for (size_t page = 0; page < bytes / PAGE; page++)
            fill((uint64_t *)(parts[part] + page * PAGE), part + 1, page);
    check_all(parts, bytes);
    if (forks) {
        pid_t child = SYS(fork());
        if (child == 0) {
            check_all(parts, bytes);
            exit(0);
        }
        int status;
        SYS(waitpid(child, &status, 0));
        CHECK(status == 0, "the child ended with %#x", status);
        check_all(parts, bytes);
    }
    puts("ok");
    return 0;
}
