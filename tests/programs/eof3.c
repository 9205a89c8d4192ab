/* Threads read beyond the end of a file while others change its size, write to it, and change or
 * replace its mapping: an access gives what the file has or raises SIGBUS, as if each call happened at once.
 *   eof3 FILE MILLISECONDS      FILE is made anew; so long for each way */
#include "common.h"

enum { INSIDE = 3, GROWN = 5, BEYOND = 7, PAGES = 8, READERS = 2, WAYS = 5 };

static uint8_t *base;
static int fd, sharing;
static _Atomic bool over;
static _Atomic unsigned long loads, changes;

static void *change(void *way)
{
    static const uint8_t bytes[] = "bytes";
    for (; !over; changes++) {
        switch ((uintptr_t)way) {
        case 0:
            SYS(ftruncate(fd, GROWN * PAGE));
            SYS(ftruncate(fd, INSIDE * PAGE));
            break;
        case 1:
            pwrite_all(fd, bytes, sizeof bytes, PAGE);
            break;
        case 2:
            SYS(mprotect(base, PAGES * PAGE, PROT_READ));
            SYS(mprotect(base, PAGES * PAGE, PROT_READ | PROT_WRITE));
            break;
        case 3:
            SYS(madvise(base, PAGES * PAGE, MADV_DONTNEED));
            break;
        default:
            CHECK(mmap(base, PAGES * PAGE, PROT_READ | PROT_WRITE, sharing | MAP_FIXED, fd, 0) == base,
                  "it cannot be mapped again: %s", strerror(errno));
        }
    }
    return NULL;
}

/* What a load raises; the page must be one that may raise it. */
static void load(size_t page)
{
    uint8_t value = 0;
    struct outcome seen = probe_load(base + page * PAGE + 123, &value);
    if (seen.sig != 0)
        outcome_check(seen, SIGBUS, BUS_ADRERR, base + page * PAGE + 123, "a load", __LINE__);
    CHECK(seen.sig != 0 || value == 0, "page %zu has %d", page, value);
    CHECK(seen.sig != 0 || page < GROWN, "page %zu is beyond the end, and can be read", page);
    CHECK(seen.sig == 0 || page >= INSIDE, "page %zu is in the file, and cannot be read", page);
    loads++;
}

static void *read_on(void *unused)
{
    (void)unused;
    while (!over) {
        load(INSIDE - 1);
        load(GROWN - 1);
        load(BEYOND);
    }
    return NULL;
}

/* One way of changing at a time, and then all. */
static void changed_while_read(unsigned ways, unsigned milliseconds)
{
    pthread_t readers[READERS], changers[WAYS];
    over = false;
    for (unsigned i = 0; i < READERS; i++)
        CHECK(pthread_create(&readers[i], NULL, read_on, NULL) == 0, "no thread");
    for (unsigned way = 0; way < WAYS; way++)
        if (ways & 1U << way)
            CHECK(pthread_create(&changers[way], NULL, change, (void *)(uintptr_t)way) == 0, "no thread");
    sleep_ms(milliseconds);
    over = true;
    for (unsigned i = 0; i < READERS; i++)
        CHECK(pthread_join(readers[i], NULL) == 0, "no thread");
    for (unsigned way = 0; way < WAYS; way++)
        if (ways & 1U << way)
            CHECK(pthread_join(changers[way], NULL) == 0, "no thread");
}

static void changed_while_read_in(const char *path, int how, unsigned milliseconds)
{
    sharing = how;
    loads = changes = 0;
    fd = (int)SYS(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
    SYS(ftruncate(fd, INSIDE * PAGE));
    base = map_file(fd, PAGES * PAGE, PROT_READ | PROT_WRITE, sharing, 0);
    for (unsigned way = 0; way < WAYS; way++)
        changed_while_read(1U << way, milliseconds);
    changed_while_read((1U << WAYS) - 1, milliseconds);
    CHECK(loads > 0, "nothing was read");
    CHECK(changes > 0, "nothing was changed");
    SYS(munmap(base, PAGES * PAGE));
    SYS(close(fd));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: eof3 FILE MILLISECONDS");
    unsigned milliseconds = (unsigned)strtoul(argv[2], NULL, 0);
    probe_install();
    PART(changed_while_read_in, argv[1], MAP_SHARED, milliseconds);
    PART(changed_while_read_in, argv[1], MAP_PRIVATE, milliseconds);
    return 0;
}
