/* Touches each page of a file once, in an order of its own, so that who counts page faults can be checked.
 *   touched FILE THREADS MODE
 *     load    each page is loaded from
 *     store   each page is loaded from, then each is stored to, then the file is synced
 *     signal  as load, then SIGTERM
 *     fork    as load, and once more in a child, when only that has the file
 * Says the number of pages. No read ahead is wanted (MADV_RANDOM), so each page costs a read of its own. */
#include "common.h"

static volatile uint8_t *base;
static size_t pages;
static unsigned threads;
static bool store;

static void *toucher(void *argument)
{
    /* A step that has no factor in common with the number of pages meets each of them. */
    size_t step = 4099 % pages ? 4099 : 1, page = 0;
    unsigned own = (unsigned)(uintptr_t)argument;
    for (size_t turn = 0; turn < pages; turn++, page = (page + step) % pages) {
        if (page % threads != own)
            continue;
        if (store)
            base[page * PAGE] = 1;
        else
            (void)base[page * PAGE];
    }
    return NULL;
}

static void touch(void)
{
    pthread_t ids[64];
    for (unsigned i = 0; i < threads; i++)
        SPAWN(&ids[i], toucher, (void *)(uintptr_t)i);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
}

static int fd;

static void map_and_touch(const char *path)
{
    fd = SYS(open(path, O_RDWR));
    struct stat stat;
    SYS(fstat(fd, &stat));
    pages = stat.st_size / PAGE;
    base = mmap(NULL, stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(base != MAP_FAILED, "mmap: %s", strerror(errno));
    SYS(madvise((void *)base, stat.st_size, MADV_RANDOM));
    touch();
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "touched FILE THREADS MODE");
    threads = atoi(argv[2]);
    CHECK(threads >= 1 && threads <= 64, "1 to 64 threads");
    map_and_touch(argv[1]);
    printf("%zu\n", pages);
    fflush(stdout);
    if (strcmp(argv[3], "store") == 0) {
        store = true;
        touch();
        SYS(msync((void *)base, pages * PAGE, MS_SYNC));
    } else if (strcmp(argv[3], "signal") == 0) {
        raise(SIGTERM);
    } else if (strcmp(argv[3], "fork") == 0) {
        SYS(munmap((void *)base, pages * PAGE));
        SYS(close(fd));
        pid_t child = SYS(fork());
        if (child == 0) {
            map_and_touch(argv[1]);
            /* A fault is counted once its thread goes on, so the last one perhaps after the end. */
            usleep(100000);
            exit(0);
        }
        int status;
        SYS(waitpid(child, &status, 0));
        CHECK(status == 0, "the child's status is %#x", status);
        printf("%d\n", (int)child);
    } else {
        CHECK(strcmp(argv[3], "load") == 0, "no such mode: %s", argv[3]);
    }
    return 0;
}
