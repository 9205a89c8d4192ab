/* What msync says, in every case: for each range and each set of flags a line, which is to be the same under
 * the plain kernel.
 *   msyncs FILE */
#include "common.h"

#define LEN (4 * MIB)
#define HALF (LEN / 2)

static int fd;

static const struct {
    const char *name;
    int flags;
} FLAGS[] = {
    {"0", 0},
    {"MS_ASYNC", MS_ASYNC},
    {"MS_SYNC", MS_SYNC},
    {"MS_INVALIDATE", MS_INVALIDATE},
    {"MS_ASYNC|MS_INVALIDATE", MS_ASYNC | MS_INVALIDATE},
    {"MS_SYNC|MS_INVALIDATE", MS_SYNC | MS_INVALIDATE},
    {"MS_ASYNC|MS_SYNC", MS_ASYNC | MS_SYNC},
    {"all", MS_ASYNC | MS_SYNC | MS_INVALIDATE},
    {"8", 8},
    {"MS_SYNC|8", MS_SYNC | 8},
    {"-1", -1},
};

static void say(const char *what, void *at, size_t len)
{
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        errno = 77;
        int r = msync(at, len, FLAGS[i].flags);
        const char *error = r == 0 && errno == 77 ? "0" : strerrorname_np(errno);
        printf("%s, %s: %d %s\n", what, FLAGS[i].name, r, error);
    }
}

static uint8_t *mapping(int prot, int flags)
{
    return map_file(fd, LEN, prot, flags, 0);
}

/* Every part of the mapping that can be stored to is different from before. */
static void store(uint8_t *from, uint8_t *to, uint8_t value)
{
    memset(from, value, (size_t)(to - from));
}

static void in_file(size_t from, size_t to, uint8_t value)
{
    static uint8_t bytes[LEN];
    CHECK(pread(fd, bytes, to - from, (off_t)from) == (ssize_t)(to - from), "pread: %s", strerror(errno));
    for (size_t i = 0; i < to - from; i++)
        CHECK(bytes[i] == value, "byte %zu of the file is %#x, not %#x", from + i, bytes[i], value);
}


int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: msyncs FILE");
    fd = (int)SYS(open(argv[1], O_RDWR));
    uint8_t *at = mapping(PROT_READ | PROT_WRITE, MAP_SHARED);
    store(at, at + LEN, 1);
    say("all of it", at, LEN);
    say("not aligned", at + 1, PAGE);
    say("nothing", at, 0);
    say("nothing, not aligned", at + 1, 0);
    say("one byte", at + PAGE, 1);
    say("a length that wraps when it is rounded", at, SIZE_MAX);
    say("the longest length", at, SIZE_MAX - PAGE + 1);
    say("an end that wraps", at, SIZE_MAX - LEN);
    say("an end beyond all addresses", at, (size_t)1 << 47);
    say("the first page", NULL, PAGE);
    say("the last addresses", (void *)(~(uintptr_t)0 - PAGE + 1), PAGE);
    say("beyond what can be mapped", (void *)((uintptr_t)1 << 47), PAGE);
    in_file(0, LEN, 1);

    store(at, at + LEN, 2);
    SYS(munmap(at + HALF, PAGE));
    say("a hole in the middle", at, LEN);
    say("a hole at the end", at, HALF + PAGE);
    say("a hole at the beginning", at + HALF, HALF);
    say("only a hole", at + HALF, PAGE);
    in_file(0, LEN, 2);
    SYS(munmap(at, LEN));
    say("what was unmapped", at, LEN);

    at = mapping(PROT_READ | PROT_WRITE, MAP_SHARED);
    store(at, at + LEN, 3);
    SYS(mprotect(at + HALF, PAGE, PROT_NONE));
    SYS(mprotect(at, PAGE, PROT_READ));
    say("rights that differ", at, LEN);
    in_file(0, LEN, 3);
    SYS(munmap(at, LEN));

    /* Memory that is the kernel's beside and inside of what is managed. */
    at = mapping(PROT_READ | PROT_WRITE, MAP_SHARED);
    store(at, at + LEN, 4);
    CHECK(mmap(at + HALF, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
              at + HALF,
          "mmap: %s", strerror(errno));
    memset(at + HALF, 9, 2 * PAGE);
    say("memory of the kernel's in the middle", at, LEN);
    SYS(munmap(at + HALF, PAGE));
    say("a hole, and memory of the kernel's", at, LEN);
    say("from the hole on", at + HALF, LEN - HALF);
    in_file(0, HALF, 4);
    in_file(HALF + 2 * PAGE, LEN, 4);
    bytes_check(at + HALF + PAGE, 9, PAGE, "the kernel's memory");
    SYS(munmap(at, LEN));

    at = mapping(PROT_READ, MAP_PRIVATE);
    say("a private mapping", at, LEN);
    SYS(munmap(at, LEN));
    at = mapping(PROT_READ, MAP_SHARED);
    say("a mapping to read", at, LEN);
    SYS(munmap(at, LEN));
    at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    say("anonymous memory", at, LEN);
    SYS(munmap(at, LEN));

    /* A part of it locked: the last, since that is the kernel's from then on. */
    at = mapping(PROT_READ | PROT_WRITE, MAP_SHARED);
    store(at, at + LEN, 5);
    SYS(mlock(at + HALF, PAGE));
    say("a locked page", at, LEN);
    say("before the locked page", at, HALF);
    SYS(munmap(at + PAGE, PAGE));
    say("a hole before a locked page", at, LEN);
    SYS(munlock(at + HALF, PAGE));
    say("a page that was locked", at + 2 * PAGE, LEN - 2 * PAGE);
    in_file(0, LEN, 5);
    SYS(munmap(at, LEN));
    return 0;
}
