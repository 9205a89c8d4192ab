/* The calls of umap's header. */
#define _GNU_SOURCE
#include "check.h"

/* umap's calls, and what they refuse. */
static void test_umap(void)
{
    setenv("UMAP_PAGESIZE", "8192", 1);
    setenv("UMAP_BUFSIZE", "2048", 1);
    setenv("UMAP_PAGE_FILLERS", "5", 1);
    setenv("UMAP_EVICT_LOW_WATER_THRESHOLD", "33", 1);
    CHECK(umapcfg_get_umap_page_size() == 8192 && umapcfg_get_max_pages_in_buffer() == 2048);
    CHECK(umapcfg_get_num_fillers() == 5 && umapcfg_get_num_evictors() >= 1);
    CHECK(umapcfg_get_evict_low_water_threshold() == 33 && umapcfg_get_evict_high_water_threshold() == 90);
    CHECK(umapcfg_get_max_fault_events() == 256 && umapcfg_get_read_ahead() == 0);
    CHECK(umapcfg_get_system_page_size() == PAGE && umap_has_write_support() == 1);
    CHECK(umap_flush() == 0); /* There is nothing. */
    CHECK(uunmap((void *)PAGE, PAGE) == -1 && errno == EINVAL);
    make_file(8192);
    int fd = open(path, O_RDWR);
    size_t bytes = 8192 * PAGE;
    int prot = PROT_READ | PROT_WRITE;
    CHECK(umap(NULL, PAGE, prot, UMAP_PRIVATE, fd, 0) == UMAP_FAILED && errno == EINVAL);
    CHECK(umap(NULL, 0, prot, UMAP_PRIVATE, fd, 0) == UMAP_FAILED && errno == EINVAL);
    CHECK(umap(NULL, bytes, prot, MAP_SHARED, fd, 0) == UMAP_FAILED && errno == EINVAL);
    CHECK(umap(NULL, bytes, prot | PROT_EXEC, UMAP_PRIVATE, fd, 0) == UMAP_FAILED && errno == EINVAL);
    CHECK(umap(NULL, bytes, prot, UMAP_PRIVATE, -1, 0) == UMAP_FAILED && errno == EBADF);
    CHECK(umap(NULL, bytes, prot, UMAP_PRIVATE, fd, 5) == UMAP_FAILED && errno == EINVAL);
    CHECK(umap_ex(NULL, bytes, prot, UMAP_PRIVATE, fd, 0, &fd) == UMAP_FAILED && errno == ENOTSUP);
    uint64_t *region = umap_ex(NULL, bytes, prot, UMAP_PRIVATE, fd, 0, NULL);
    CHECK(region != UMAP_FAILED);
    struct umap_prefetch_item items[3] = {{region}, {region + 100 * 1024}, {NULL}};
    umap_prefetch(3, items);
    umap_prefetch(-1, NULL);
    umap_fetch_and_pin((char *)region, 65536);
    umap_fetch_and_pin(NULL, UINT64_MAX);
    for (uint64_t page = 0; page < 8192; page++) {
        CHECK(region[page * 512] == page);
        region[page * 512] += 5;
    }
    CHECK(umap_flush() == 0);
    uint64_t there = 0;
    CHECK(pread(fd, &there, 8, 100 * PAGE) == 8 && there == 105);
    void *fixed = (void *)0x510000000000;
    uint64_t *second = umap(fixed, 8192, PROT_READ, UMAP_PRIVATE | UMAP_FIXED, fd, 8192);
    CHECK(second == fixed && second[0] == 7);
    /* In the place of a region, in the middle of one, and over the end of one. */
    CHECK(umap(fixed, 8192, PROT_READ, UMAP_PRIVATE | UMAP_FIXED, fd, 16384) == fixed && second[0] == 9);
    CHECK(uunmap(second, 8192) == 0 && uunmap(second, 8192) == -1);
    char *middle = (char *)region + 16 * MIB, *end = (char *)region + bytes;
    CHECK(umap(middle, MIB, PROT_READ, UMAP_PRIVATE | UMAP_FIXED, fd, 0) == middle);
    CHECK(*(uint64_t *)middle == 5 && region[4095 * 512] == 4100 && ((uint64_t *)end)[-512] == 8196);
    CHECK(umap(end - 8192, MIB, PROT_READ, UMAP_PRIVATE | UMAP_FIXED, fd, 0) == UMAP_FAILED);
    CHECK(errno == EEXIST);
    CHECK(uunmap(middle, MIB) == 0 && uunmap(middle + MIB, MIB) == 0 && uunmap(middle, MIB) == -1);
    CHECK(region[4095 * 512] == 4100);
    region[0] = 4711;
    CHECK(uunmap(region, bytes) == 0);
    CHECK(uunmap(region, bytes) == -1 && errno == EINVAL);
    CHECK(pread(fd, &there, 8, 0) == 8 && there == 4711);
    close(fd);
}

/* A region begins at any page of the machine, also if the pages of umap are larger. */
static void test_pages(void)
{
    setenv("UMAP_PAGESIZE", "65536", 1);
    make_file(64);
    int fd = open(path, O_RDWR);
    int prot = PROT_READ | PROT_WRITE;
    uint64_t *region = umap((void *)0x510000003000, 131072, prot, UMAP_PRIVATE | UMAP_FIXED, fd, 0);
    CHECK(region == (uint64_t *)0x510000003000);
    uint64_t *other = umap(NULL, 65536, prot, UMAP_PRIVATE, fd, 131072);
    CHECK(other != UMAP_FAILED);
    /* Errors are ignored, and what follows is read all the same. */
    struct umap_prefetch_item items[] = {{NULL}, {region + 31 * 512}, {other + 15 * 512}};
    umap_prefetch(3, items);
    CHECK(region[31 * 512] == 31 && other[0] == 32 && other[15 * 512] == 47);
    CHECK(uunmap(region, 131072) == 0 && uunmap(other, 65536) == 0);
    close(fd);
}

static pthread_barrier_t barrier;

static void *map_first(void *argument)
{
    int fd = *(int *)argument;
    pthread_barrier_wait(&barrier);
    return umap(NULL, 65536, PROT_READ, UMAP_PRIVATE, fd, 0);
}

/* Threads that all make the first mapping: one of them starts the manager. */
static void test_first(void)
{
    make_file(16);
    int fd = open(path, O_RDWR);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork_child();
        CHECK(child >= 0);
        if (child == 0) {
            enum { THREADS = 6 };
            pthread_t threads[THREADS];
            CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
            for (int at = 0; at < THREADS; at++)
                CHECK(pthread_create(&threads[at], NULL, map_first, &fd) == 0);
            for (int at = 0; at < THREADS; at++) {
                void *region = NULL;
                CHECK(pthread_join(threads[at], &region) == 0);
                CHECK(region != UMAP_FAILED);
            }
            _exit(0);
        }
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    close(fd);
}

static const struct test TESTS[] = {
    {"umap", test_umap},
    {"pages", test_pages},
    {"first", test_first},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, TESTS, sizeof TESTS / sizeof *TESTS);
}
