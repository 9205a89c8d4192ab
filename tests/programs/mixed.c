/* Calls about managed memory and the kernel's mappings at once, calls that are refused, and small mappings in
 * the middle of large ones. Whatever was asked for: what the program sees as one mapping stays one.
 *   mixed FILE             of some pages, on a disk */
#include "common.h"

#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { PAGES = 2048, MIDDLE = 1024, SOME = 16, RW = PROT_READ | PROT_WRITE };

static int fd;

static uint8_t *page(uint8_t *at, size_t number)
{
    return at + number * PAGE;
}

static uint8_t *fresh(void)
{
    uint8_t *at = mmap(NULL, PAGES * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    for (size_t i = 0; i < PAGES; i++)
        memset(page(at, i), (int)(i % 251 + 1), PAGE);
    return at;
}

/* The pages from `from` on, of which some are zeros, are one mapping: it grows. */
static void is_one(const char *what, uint8_t *at, size_t from, size_t to, size_t zero, size_t zeros)
{
    uint8_t *now = mremap(page(at, from), (to - from) * PAGE, (PAGES + SOME) * PAGE, MREMAP_MAYMOVE);
    CHECK(now != MAP_FAILED, "%s: mremap: %s", what, strerror(errno));
    for (size_t i = from; i < to; i++) {
        uint8_t wanted = i >= zero && i < zero + zeros ? 0 : (uint8_t)(i % 251 + 1);
        for (size_t byte = 0; byte < PAGE; byte += 1021)
            CHECK(page(now, i - from)[byte] == wanted, "%s: page %zu has another byte at %zu", what, i, byte);
    }
    SYS(munmap(now, (PAGES + SOME) * PAGE));
    printf("%s ok\n", what);
}

/* The kernel's own mapping in the middle: what may be executed. Both sides of it are in the calls. */
static void calls_on_both(void)
{
    static const char *const names[] = {"pageout", "cold", "willneed", "protect",
                                        "mincore", "sync", "unlock"};
    for (int call = 0; call < 7; call++) {
        uint8_t *at = fresh(), *code = page(at, MIDDLE);
        CHECK(mmap(code, SOME * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, 0) == code, "mmap");
        uint8_t *from = page(at, MIDDLE - 2 * SOME);
        size_t len = 5 * SOME * PAGE;
        unsigned char out[5 * SOME];
        switch (call) {
        case 0: SYS(madvise(from, len, MADV_PAGEOUT)); break;
        case 1: SYS(madvise(from, len, MADV_COLD)); break;
        case 2: SYS(madvise(from, len, MADV_WILLNEED)); break;
        case 3:
            SYS(mprotect(from, len, PROT_READ));
            SYS(mprotect(from, len, RW));
            break;
        case 4: SYS(mincore(from, len, out)); break;
        case 5: SYS(msync(from, len, MS_ASYNC)); break;
        default: SYS(munlock(from, len)); break;
        }
        is_one(names[call], at, 0, MIDDLE, 0, 0);
        SYS(munmap(code, (PAGES - MIDDLE) * PAGE));
    }
}

static void refused(void)
{
    uint8_t *at = fresh();
    CHECK(mremap(page(at, MIDDLE), 0, PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL,
          "a private mapping is had twice");
    is_one("twice", at, 0, PAGES, 0, 0);
    at = fresh();
    CHECK(mmap(page(at, MIDDLE), PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED && errno == EACCES,
          "a file that is only read is stored to");
    is_one("only read", at, 0, PAGES, 0, 0);
    at = fresh();
    int flags = MAP_SHARED_VALIDATE | MAP_FIXED | MAP_SYNC;
    uint8_t *synced = mmap(page(at, MIDDLE), SOME * PAGE, PROT_READ, flags, fd, 0);
    unsigned char out[SOME];
    int error = synced == MAP_FAILED ? errno : 0;
    int gone = mincore(page(at, MIDDLE), SOME * PAGE, out) != 0 && errno == ENOMEM;
    printf("synchronous: errno %d, %s\n", error, gone ? "gone" : "there");
    is_one("before it", at, 0, MIDDLE, 0, 0);
    SYS(munmap(page(at, MIDDLE), (PAGES - MIDDLE) * PAGE));
}

static void in_the_middle(void)
{
    uint8_t *at = fresh(), *small = page(at, MIDDLE);
    CHECK(mmap(small, 2 * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == small, "mmap");
    is_one("small", at, 0, PAGES, MIDDLE, 2);
    at = fresh();
    uint8_t *kept = mremap(page(at, MIDDLE), SOME * PAGE, SOME * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP,
                           NULL);
    CHECK(kept != MAP_FAILED, "mremap: %s", strerror(errno));
    for (size_t i = 0; i < SOME; i++)
        CHECK(*page(kept, i) == (uint8_t)((MIDDLE + i) % 251 + 1), "page %zu has %u", i, *page(kept, i));
    SYS(munmap(kept, SOME * PAGE));
    is_one("kept", at, 0, PAGES, MIDDLE, SOME);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: mixed FILE");
    fd = (int)SYS(open(argv[1], O_RDONLY | O_CLOEXEC));
    calls_on_both();
    refused();
    in_the_middle();
    return 0;
}
