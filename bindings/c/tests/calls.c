/*
 * Each call of the library, as a program uses it and as a program misuses it: calls DIRECTORY [TEST]. The
 * directory is on a disk.
 */
#define _GNU_SOURCE
#include <elbowroom.h>
#include <umap/umap.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096 };

/* AddressSanitizer keeps memory that was freed. */
#ifdef __SANITIZE_ADDRESS__
enum { KEEPS_FREED = 1 };
#else
enum { KEEPS_FREED = 0 };
#endif

static const char *directory;
static char path[4096];

/* Ends the test unless the condition holds. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, er_error());       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define GOOD(call) CHECK((call) == 0)
/* The call fails with this number, and the text has these words. */
#define BAD(call, number, words)                                                                   \
    do {                                                                                           \
        CHECK((call) == (number));                                                                 \
        CHECK(strstr(er_error(), words) != NULL);                                                  \
    } while (0)

static er_manager *start_with(uint64_t memory, uint64_t swap, const char *inject)
{
    er_config config;
    er_config_init(&config, sizeof config);
    config.memory = memory;
    config.swap = swap;
    config.swap_dir = directory;
    config.inject = inject;
    er_manager *manager = NULL;
    GOOD(er_start(&config, &manager));
    CHECK(manager != NULL);
    return manager;
}

static er_manager *start(void)
{
    return start_with(32 * MIB, 128 * MIB, NULL);
}

/* A file of `pages` pages, each of which begins with its number. */
static void make_file(size_t pages)
{
    snprintf(path, sizeof path, "%s/elbowroom-c-%d", directory, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    static uint64_t page[PAGE / 8];
    for (size_t at = 0; at < pages; at++) {
        page[0] = at;
        CHECK(write(fd, page, PAGE) == PAGE);
    }
    CHECK(fsync(fd) == 0 && close(fd) == 0);
}

static er_map_options options_of(er_file *file, size_t length, uint32_t access)
{
    er_map_options options;
    er_map_options_init(&options, sizeof options);
    options.file = file;
    options.length = length;
    options.access = access;
    return options;
}

static uint64_t *map(er_manager *manager, er_file *file, size_t length, uint32_t access)
{
    er_map_options options = options_of(file, length, access);
    void *address = NULL;
    GOOD(er_map(manager, &options, &address));
    CHECK(address != NULL);
    return address;
}

static er_file *open_file(er_manager *manager, uint32_t flags)
{
    er_file *file = NULL;
    GOOD(er_open(manager, path, flags, &file));
    return file;
}

static void test_files(void)
{
    CHECK(strncmp(er_version(), "0.", 2) == 0 && er_error()[0] == 0);
    er_manager *manager = start();
    make_file(4096);
    er_file *file = open_file(manager, ER_READ | ER_WRITE | ER_TRUST);
    uint64_t size = 0;
    GOOD(er_file_size(file, &size));
    CHECK(size == 4096 * PAGE);
    uint64_t *bytes = map(manager, file, 0, ER_READ | ER_WRITE);
    for (uint64_t page = 0; page < 4096; page++)
        CHECK(bytes[page * 512] == page);
    int managed = 0;
    GOOD(er_is_managed(manager, bytes + 512, &managed));
    CHECK(managed == 1);

    /* What is stored is read by calls at once, and the other way round. */
    bytes[512 * 7 + 1] = 77;
    uint64_t there = 0;
    size_t done = 0;
    GOOD(er_file_read(file, 7 * PAGE + 8, &there, sizeof there, &done));
    CHECK(there == 77 && done == sizeof there);
    there = 78;
    GOOD(er_file_write(file, 7 * PAGE + 8, &there, sizeof there, &done));
    CHECK(bytes[512 * 7 + 1] == 78 && done == sizeof there);
    /* A write from managed memory, of more than one transfer, and a read into it. */
    GOOD(er_file_write(file, 0, bytes + 2048 * 512, 3 * MIB, &done));
    CHECK(done == 3 * MIB && bytes[0] == 2048 && bytes[767 * 512] == 2048 + 767);
    GOOD(er_file_read(file, 0, bytes + 1024 * 512, 3 * MIB, NULL));
    CHECK(bytes[1024 * 512] == 2048);
    GOOD(er_file_read(file, size - 8, &there, 100, &done));
    CHECK(done == 8);
    GOOD(er_file_read(file, size + 8, &there, 100, &done));
    CHECK(done == 0);

    /* Sync, and the file as others see it. */
    bytes[5 * 512 + 3] = 5555;
    GOOD(er_sync(manager, bytes, 4096 * PAGE));
    int fd = open(path, O_RDONLY);
    CHECK(pread(fd, &there, 8, 5 * PAGE + 24) == 8 && there == 5555);
    bytes[5 * 512 + 3] = 5556;
    GOOD(er_file_sync(file));
    CHECK(pread(fd, &there, 8, 5 * PAGE + 24) == 8 && there == 5556);
    close(fd);

    /* A private mapping, at an offset, with another name for the file. */
    er_file *again = NULL;
    fd = open(path, O_RDONLY);
    GOOD(er_open_fd(manager, fd, ER_READ | ER_TRUST, &again));
    close(fd);
    er_map_options options = options_of(again, 2 * PAGE, ER_READ | ER_WRITE);
    options.flags = ER_PRIVATE;
    options.offset = 9 * PAGE;
    void *address = NULL;
    GOOD(er_map(manager, &options, &address));
    uint64_t *copy = address;
    CHECK(copy[0] == bytes[9 * 512]);
    copy[0] = 1234567;
    CHECK(bytes[9 * 512] != 1234567);
    GOOD(er_advise(manager, copy, PAGE, ER_DISCARD));
    CHECK(copy[0] == bytes[9 * 512]);

    /* The size: an access behind the new end would be SIGBUS. */
    GOOD(er_file_resize(file, 100 * PAGE));
    GOOD(er_file_size(again, &size));
    CHECK(size == 100 * PAGE && bytes[99 * 512] != 0);
    GOOD(er_file_resize(file, 200 * PAGE));
    CHECK(bytes[150 * 512] == 0);
    GOOD(er_advise(manager, bytes + 99 * 512, PAGE, ER_PUNCH));
    CHECK(bytes[99 * 512] == 0);

    GOOD(er_unmap(manager, copy));
    GOOD(er_close(again));
    GOOD(er_close(file));
    bytes[0] = 42; /* The mapping stays. */
    GOOD(er_unmap(manager, bytes));
    GOOD(er_stop(manager));
    fd = open(path, O_RDONLY);
    CHECK(pread(fd, &there, 8, 0) == 8 && there == 42);
    close(fd);
}

static void test_memory(void)
{
    er_manager *manager = start();
    uint64_t *bytes = map(manager, NULL, 96 * MIB, 0);
    size_t count = 96 * MIB / 8;
    for (size_t at = 0; at < count; at += 512)
        bytes[at] = at;
    for (size_t at = 0; at < count; at += 512)
        CHECK(bytes[at] == at && bytes[at + 1] == 0);
    er_stats stats;
    GOOD(er_get_stats(manager, &stats, sizeof stats));
    CHECK(stats.peak_bytes <= 32 * MIB && stats.swap_out_pages > 0 && stats.budget_bytes == 32 * MIB);
    GOOD(er_pin(manager, bytes + 3, 4 * MIB));
    BAD(er_advise(manager, bytes, PAGE, ER_PAGEOUT), EINVAL, "advice");
    GOOD(er_unpin(manager, bytes + 3, 4 * MIB));
    GOOD(er_advise(manager, bytes, MIB, ER_PAGEOUT));
    GOOD(er_advise(manager, bytes, MIB, ER_WILLNEED));
    GOOD(er_advise(manager, bytes, MIB, ER_COLD));
    GOOD(er_advise(manager, bytes, MIB, ER_RANDOM));
    GOOD(er_advise(manager, bytes, MIB, ER_SEQUENTIAL));
    GOOD(er_advise(manager, bytes, MIB, ER_NORMAL));
    /* Whole pages are forgotten, and no byte beside the range. */
    GOOD(er_advise(manager, (char *)bytes + 8, 2 * PAGE, ER_DISCARD));
    CHECK(bytes[0] == 0 && bytes[512] == 0 && bytes[1024] == 1024);
    bytes[0] = 1;
    GOOD(er_advise(manager, (char *)bytes + 8, 100, ER_DISCARD));
    CHECK(bytes[0] == 1);
    /* All anonymous memory together is promised. */
    er_map_options options = options_of(NULL, 100 * MIB, 0);
    void *address = &options;
    BAD(er_map(manager, &options, &address), ENOMEM, "swap_dir");
    CHECK(address == NULL);
    BAD(er_stop(manager), EBUSY, "er_unmap");
    GOOD(er_unmap(manager, bytes));
    bytes = map(manager, NULL, 100 * MIB, ER_READ | ER_WRITE);
    GOOD(er_unmap(manager, bytes));

    size_t needed = 0;
    CHECK(er_stats_json(manager, NULL, 0, &needed) == ERANGE && needed > 100);
    char *text = malloc(needed + 200);
    GOOD(er_stats_json(manager, text, needed + 200, NULL));
    CHECK(text[0] == '{' && strstr(text, "\"budget_bytes\":33554432") != NULL);
    free(text);

    /* An address of the program's choice. */
    options = options_of(NULL, 4 * PAGE, 0);
    options.flags = ER_FIXED;
    options.address = (void *)0x500000000000;
    GOOD(er_map(manager, &options, &address));
    CHECK(address == options.address);
    *(int *)address = 7;
    void *other = NULL;
    BAD(er_map(manager, &options, &other), EEXIST, "cannot map");
    CHECK(*(int *)address == 7);
    GOOD(er_unmap(manager, address));
    GOOD(er_stop(manager));
}

static void test_groups(void)
{
    er_manager *manager = start();
    er_limits limits;
    er_limits_init(&limits, sizeof limits);
    CHECK(limits.max == ER_NO_LIMIT && limits.swappiness == 60 && limits.size == sizeof limits);
    limits.max = 8 * MIB;
    limits.swap_max = 64 * MIB;
    er_group *outer = NULL, *inner = NULL;
    GOOD(er_group_create(manager, NULL, &limits, &outer));
    limits.max = 4 * MIB;
    GOOD(er_group_create(manager, outer, &limits, &inner));
    er_map_options options = options_of(NULL, 16 * MIB, 0);
    options.group = inner;
    void *address = NULL;
    GOOD(er_map(manager, &options, &address));
    uint64_t *bytes = address;
    for (size_t at = 0; at < 16 * MIB / 8; at += 512)
        bytes[at] = at + 1;
    er_group_stats stats;
    GOOD(er_group_get_stats(inner, &stats, sizeof stats));
    CHECK(stats.peak_bytes <= 4 * MIB && stats.swap_bytes > 8 * MIB && stats.anonymous_bytes == 16 * MIB);
    CHECK(stats.number > 0 && stats.faults > 0);
    GOOD(er_group_get_stats(outer, &stats, sizeof stats));
    CHECK(stats.anonymous_bytes == 16 * MIB);
    limits.max = 2 * MIB;
    GOOD(er_group_set_limits(inner, &limits));
    GOOD(er_group_get_stats(inner, &stats, sizeof stats));
    CHECK(stats.usage_bytes <= 2 * MIB);
    memset(&limits, 0, sizeof limits);
    GOOD(er_group_get_limits(inner, &limits, sizeof limits));
    CHECK(limits.max == 2 * MIB && limits.swap_max == 64 * MIB);
    limits.max = 5;
    BAD(er_group_set_limits(inner, &limits), EINVAL, "unit");
    limits.max = limits.swap_max = 2 * MIB;
    BAD(er_group_set_limits(inner, &limits), EINVAL, "less than");
    for (size_t at = 0; at < 16 * MIB / 8; at += 512)
        CHECK(bytes[at] == at + 1);
    options.length = 60 * MIB;
    BAD(er_map(manager, &options, &address), ENOMEM, "swap_max");
    /* The group lives as long as its mapping. */
    er_group *gone = inner;
    GOOD(er_group_remove(inner));
    BAD(er_group_remove(gone), EINVAL, "no group");
    CHECK(bytes[512] == 513);
    GOOD(er_unmap(manager, bytes));
    GOOD(er_group_remove(outer));
    /* There are 1,024 places; those of removed groups are used again. */
    for (int round = 0; round < 1500; round++) {
        GOOD(er_group_create(manager, NULL, NULL, &outer));
        GOOD(er_group_remove(outer));
    }
    GOOD(er_stop(manager));
}

static void test_misuse(void)
{
    er_manager *none = (er_manager *)0x1000, *manager = none;
    er_file *file = (er_file *)0x1000;
    er_group *group = (er_group *)-1;
    void *address = NULL;
    uint64_t size;
    int managed;
    er_map_options options = options_of(NULL, PAGE, 0);
    /* Before there is a manager. */
    BAD(er_stop(NULL), EINVAL, "no manager");
    BAD(er_stop(none), EINVAL, "no manager");
    BAD(er_map(none, &options, &address), EINVAL, "no manager");
    BAD(er_file_size(file, &size), EINVAL, "no open file");
    BAD(er_start(NULL, NULL), EINVAL, "manager is NULL");
    er_config config;
    memset(&config, 0xff, sizeof config);
    BAD(er_start(&config, &manager), EINVAL, "er_config_init");
    CHECK(manager == NULL);
    er_config_init(&config, sizeof config);
    config.memory = MIB;
    BAD(er_start(&config, &manager), ENOTSUP, "16 MiB");
    config.memory = 16 * MIB;
    config.flags = 64;
    BAD(er_start(&config, &manager), EINVAL, "ER_SWAP_ENCRYPT");
    config.flags = 0;
    config.swap_dir = "/no/such/directory";
    config.swap = MIB;
    BAD(er_start(&config, &manager), ENOTSUP, "/no/such/directory");
    config.swap = 0;
    config.inject = "nonsense";
    BAD(er_start(&config, &manager), ENOTSUP, "inject");
    config.inject = NULL;
    /* A struct of a later version: what is not known must be zero. */
    struct {
        er_config config;
        uint64_t later;
    } large;
    memset(&large, 0, sizeof large);
    er_config_init(&large.config, sizeof large);
    CHECK(large.later == 0);
    large.config.memory = 16 * MIB;
    large.config.swap = 0;
    large.later = 1;
    BAD(er_start(&large.config, &manager), E2BIG, "not know");
    large.later = 0;
    GOOD(er_start(&large.config, &manager));
    er_manager *second = NULL;
    BAD(er_start(&config, &second), EBUSY, "group");

    /* With one. */
    BAD(er_map(manager, NULL, &address), EINVAL, "length");
    BAD(er_map(manager, &options, NULL), EINVAL, "NULL");
    options.size = 8;
    BAD(er_map(manager, &options, &address), EINVAL, "er_map_options_init");
    options = options_of(NULL, (size_t)-1, 0);
    BAD(er_map(manager, &options, &address), ENOMEM, "map");
    options = options_of(NULL, PAGE, ER_READ);
    BAD(er_map(manager, &options, &address), EINVAL, "no file");
    options = options_of(NULL, PAGE, ER_WRITE);
    BAD(er_map(manager, &options, &address), EINVAL, "access");
    options = options_of(NULL, PAGE, 0);
    options.flags = 1 << 20;
    BAD(er_map(manager, &options, &address), EINVAL, "flags");
    options.flags = ER_FIXED;
    BAD(er_map(manager, &options, &address), EINVAL, "address");
    options.flags = 0;
    options.group = group;
    BAD(er_map(manager, &options, &address), EINVAL, "no group");
    options = options_of(file, PAGE, ER_READ);
    BAD(er_map(manager, &options, &address), EINVAL, "no open file");
    BAD(er_open(manager, NULL, ER_READ, &file), EINVAL, "NULL");
    BAD(er_open(manager, "/no/such/file", ER_READ, &file), ENOENT, "/no/such/file");
    CHECK(file == NULL);
    make_file(4);
    BAD(er_open(manager, path, 0, &file), EINVAL, "ER_READ");
    BAD(er_open_fd(manager, -1, ER_READ, &file), EBADF, "descriptor");
    file = open_file(manager, ER_READ | ER_TRUST);
    options = options_of(file, PAGE, ER_READ | ER_WRITE);
    BAD(er_map(manager, &options, &address), EACCES, "cannot map");
    options = options_of(file, PAGE, ER_READ);
    options.offset = 100;
    BAD(er_map(manager, &options, &address), EINVAL, "4096");
    options.offset = (uint64_t)1 << 62;
    options.length = 0;
    BAD(er_map(manager, &options, &address), EINVAL, "no bytes");
    CHECK(er_file_write(file, 0, &size, 8, NULL) == EBADF);
    BAD(er_file_read(file, 0, NULL, 8, NULL), EINVAL, "NULL");
    BAD(er_file_read(file, (uint64_t)-4, &size, 8, NULL), EINVAL, "read");
    BAD(er_file_size(file, NULL), EINVAL, "NULL");
    CHECK(er_file_resize(file, (uint64_t)-1) == EFBIG);
    er_file *devices = NULL;
    GOOD(er_open(manager, "/dev/null", ER_READ | ER_WRITE, &devices));
    options = options_of(devices, PAGE, ER_READ);
    BAD(er_map(manager, &options, &address), ENODEV, "cannot map");

    uint64_t *bytes = map(manager, file, 2 * PAGE, ER_READ);
    BAD(er_unmap(manager, bytes + 512), EINVAL, "no mapping begins");
    BAD(er_unmap(manager, NULL), EINVAL, "no mapping begins");
    BAD(er_sync(manager, bytes, 3 * PAGE), EINVAL, "one mapping");
    BAD(er_sync(manager, bytes, (size_t)-1), EINVAL, "one mapping");
    BAD(er_advise(manager, bytes, PAGE, 1000), EINVAL, "not known");
    CHECK(er_advise(manager, bytes, PAGE, ER_PUNCH) == EACCES);
    BAD(er_pin(manager, (void *)64, PAGE), EINVAL, "one mapping");
    BAD(er_is_managed(manager, &size, &managed), EINVAL, "one mapping");
    er_file *closed = file;
    GOOD(er_close(file));
    BAD(er_close(closed), EINVAL, "no open file");
    GOOD(er_unmap(manager, bytes));
    BAD(er_unmap(manager, bytes), EINVAL, "no mapping begins");
    /* A handle of another kind. */
    BAD(er_close((er_file *)manager), EINVAL, "no open file");
    er_stats stats;
    BAD(er_get_stats(manager, NULL, sizeof stats), EINVAL, "NULL");
    GOOD(er_stop(manager));
    BAD(er_stop(manager), EINVAL, "no manager");
    BAD(er_get_stats(manager, &stats, sizeof stats), EINVAL, "no manager");
    GOOD(er_start(&config, &second));
    CHECK(second != manager);
    GOOD(er_stop(second));
}

static size_t entries(const char *name)
{
    DIR *there = opendir(name);
    CHECK(there != NULL);
    size_t count = 0;
    while (readdir(there) != NULL)
        count++;
    closedir(there);
    return count;
}

static size_t mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    size_t count = 0;
    for (int next; (next = getc(maps)) != EOF;)
        count += next == '\n';
    fclose(maps);
    return count;
}

/* In pages. */
static size_t addresses(void)
{
    FILE *status = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    CHECK(status != NULL && fscanf(status, "%lu", &pages) == 1);
    fclose(status);
    return pages;
}

/* Started and stopped again and again, with mappings: nothing grows. */
static void test_again(void)
{
    make_file(64);
    /* Each arena of malloc is 64 MiB of addresses, and comes when threads happen to need it. */
    mallopt(M_ARENA_MAX, 2);
    size_t descriptors = 0, size = 0, parts = 0;
    for (int round = 0; round < 30; round++) {
        er_manager *manager = start();
        er_file *file = open_file(manager, ER_READ | ER_WRITE | ER_TRUST);
        uint64_t *bytes = map(manager, file, 0, ER_READ | ER_WRITE), *memory = map(manager, NULL, MIB, 0);
        CHECK(bytes[63 * 512] == 63);
        bytes[1] = memory[0] = (uint64_t)round;
        GOOD(er_unmap(manager, bytes));
        GOOD(er_unmap(manager, memory));
        GOOD(er_stop(manager)); /* Closes the file. */
        if (round == 5) {
            descriptors = entries("/proc/self/fd");
            size = addresses();
            parts = mappings();
        }
    }
    CHECK(entries("/proc/self/fd") == descriptors);
    /* The one thread, with . and ..; the last of the manager's may just be ending. */
    for (int look = 0; look < 200 && entries("/proc/self/task") > 3; look++)
        usleep(10000);
    CHECK(entries("/proc/self/task") == 3);
    CHECK(KEEPS_FREED || (addresses() < size + 2 * 64 * MIB / PAGE && mappings() < parts + 12));
}

/* A stale pointer into a manager that was stopped is SIGSEGV, and not zeros. */
static void test_stale(void)
{
    pid_t child = fork();
    if (child == 0) {
        er_manager *manager = start();
        volatile uint64_t *bytes = map(manager, NULL, MIB, 0);
        bytes[0] = 1;
        GOOD(er_unmap(manager, (void *)bytes));
        GOOD(er_stop(manager));
        _exit(bytes[0] == 0 ? 2 : 3);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static er_manager *shared_manager;

static void *work(void *argument)
{
    size_t number = (size_t)argument;
    for (int round = 0; round < 40; round++) {
        uint64_t *memory = map(shared_manager, NULL, 2 * MIB, 0);
        for (size_t at = 0; at < 2 * MIB / 8; at += 512)
            memory[at] = at + number;
        for (size_t at = 0; at < 2 * MIB / 8; at += 512)
            CHECK(memory[at] == at + number);
        BAD(er_unmap(shared_manager, memory + 1), EINVAL, "no mapping begins");
        GOOD(er_unmap(shared_manager, memory));
        (void)er_stop(shared_manager); /* Mostly EBUSY; then the others' calls are EINVAL. */
        if (round % 8 == 0)
            (void)er_stop((er_manager *)number);
    }
    return NULL;
}

/* Threads that map, and that try to stop the manager while others use it. */
static void test_threads(void)
{
    shared_manager = start();
    /* So that no thread can stop it. */
    uint64_t *keep = map(shared_manager, NULL, PAGE, 0);
    pthread_t threads[6];
    for (size_t number = 0; number < 6; number++)
        CHECK(pthread_create(&threads[number], NULL, work, (void *)number) == 0);
    for (size_t number = 0; number < 6; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
    GOOD(er_unmap(shared_manager, keep));
    GOOD(er_stop(shared_manager));
}

/* The child of a fork goes on with a copy, and can use the library; other threads work meanwhile. */
static void test_fork(void)
{
    make_file(256);
    shared_manager = start();
    er_manager *manager = shared_manager;
    er_file *file = open_file(manager, ER_READ | ER_WRITE | ER_TRUST);
    uint64_t *bytes = map(manager, file, 0, ER_READ | ER_WRITE);
    uint64_t *memory = map(manager, NULL, 48 * MIB, 0);
    for (size_t at = 0; at < 48 * MIB / 8; at += 512)
        memory[at] = at + 3;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, (void *)9) == 0);
    for (int round = 0; round < 4; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (size_t at = 0; at < 48 * MIB / 8; at += 512)
                CHECK(memory[at] == at + 3);
            memory[0] = 99;
            CHECK(bytes[255 * 512] == 255);
            uint64_t *more = map(manager, NULL, MIB, 0);
            more[0] = 1;
            GOOD(er_unmap(manager, more));
            er_map_options options = options_of(file, PAGE, ER_READ);
            void *address = NULL;
            BAD(er_map(manager, &options, &address), EOPNOTSUPP, "fork");
            options.flags = ER_OR_KERNEL;
            GOOD(er_map(manager, &options, &address));
            CHECK(*(uint64_t *)address == 0);
            /* The mappings of the parent's other thread are never unmapped here, so no er_stop. */
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(memory[0] == 3);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    GOOD(er_unmap(manager, memory));
    GOOD(er_unmap(manager, bytes));
    GOOD(er_stop(manager));
}

/* A file that the kernel maps for loads is not managed beside that: a store through one mapping is seen by
   the other one. */
static void test_kernels(void)
{
    make_file(16);
    int ready[2], end[2];
    CHECK(pipe(ready) == 0 && pipe(end) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte = 1;
        close(end[1]);
        int fd = open(path, O_RDWR);
        CHECK(fd >= 0 && write(ready[1], &byte, 1) == 1 && read(end[0], &byte, 1) == 0);
        _exit(0);
    }
    char byte = 0;
    CHECK(read(ready[0], &byte, 1) == 1 && byte == 1);
    er_manager *manager = start();
    er_file *file = open_file(manager, ER_READ | ER_WRITE);
    er_map_options options = options_of(file, 16 * PAGE, ER_READ);
    options.flags = ER_OR_KERNEL;
    void *loads = NULL, *stores = NULL;
    int managed = 1;
    GOOD(er_map(manager, &options, &loads));
    GOOD(er_is_managed(manager, loads, &managed));
    CHECK(managed == 0);
    close(end[1]);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    er_file *trusted = open_file(manager, ER_READ | ER_WRITE | ER_TRUST);
    options = options_of(trusted, 16 * PAGE, ER_READ | ER_WRITE);
    BAD(er_map(manager, &options, &stores), EOPNOTSUPP, "the kernel maps the file");
    options.flags = ER_OR_KERNEL;
    GOOD(er_map(manager, &options, &stores));
    ((uint64_t *)stores)[512] = 99;
    CHECK(((volatile uint64_t *)loads)[512] == 99);
    /* Without these it can be managed again. */
    GOOD(er_unmap(manager, loads));
    GOOD(er_unmap(manager, stores));
    GOOD(er_map(manager, &options, &stores));
    GOOD(er_is_managed(manager, stores, &managed));
    CHECK(managed == 1 && ((uint64_t *)stores)[512] == 99);
    GOOD(er_unmap(manager, stores));
    GOOD(er_close(file));
    GOOD(er_close(trusted));
    GOOD(er_stop(manager));
    close(ready[0]), close(ready[1]), close(end[0]);
}

/* A program that closes all descriptors closes none of the manager's. */
static void test_descriptors(void)
{
    make_file(64);
    er_manager *manager = start();
    er_file *file = open_file(manager, ER_READ | ER_WRITE | ER_TRUST);
    uint64_t *bytes = map(manager, file, 0, ER_READ | ER_WRITE), *memory = map(manager, NULL, 48 * MIB, 0);
    for (int fd = 3; fd < 256; fd++)
        close(fd);
    /* Another file has the number of the descriptor now. */
    int other = open("/dev/null", O_RDWR);
    CHECK(other >= 3);
    for (size_t at = 0; at < 48 * MIB / 8; at += 512)
        memory[at] = at;
    for (size_t at = 0; at < 48 * MIB / 8; at += 512)
        CHECK(memory[at] == at);
    CHECK(bytes[63 * 512] == 63);
    bytes[0] = 8;
    GOOD(er_sync(manager, bytes, PAGE));
    uint64_t size;
    BAD(er_file_size(file, &size), EBADF, "closed");
    GOOD(er_close(file));
    CHECK(fcntl(other, F_GETFD) >= 0); /* It was not closed with the file. */
    GOOD(er_unmap(manager, bytes));
    GOOD(er_unmap(manager, memory));
    GOOD(er_stop(manager));
}

/* An I/O error is a number where bytes are read by a call, and when they are written back. */
static void test_errors(void)
{
    make_file(64);
    er_manager *manager = start_with(32 * MIB, 0, "write:eio:file=elbowroom-c");
    er_file *file = open_file(manager, ER_READ | ER_WRITE | ER_TRUST);
    uint64_t *bytes = map(manager, file, 0, ER_READ | ER_WRITE);
    bytes[0] = 1;
    BAD(er_sync(manager, bytes, PAGE), EIO, "write");
    bytes[0] = 2;
    BAD(er_file_sync(file), EIO, "write");
    GOOD(er_unmap(manager, bytes));
    GOOD(er_stop(manager));
}

static unsigned reports;
static char report_text[200];

static void note(void *context, const char *line)
{
    snprintf(report_text, sizeof report_text, "%s", line);
    __atomic_add_fetch((unsigned *)context, 1, __ATOMIC_SEQ_CST);
}

static unsigned stuck;

static void note_stuck(void *context, uint64_t group, uint64_t usage, uint64_t high)
{
    CHECK(context == &reports && group > 0 && usage > high && high == 2 * MIB);
    __atomic_add_fetch(&stuck, 1, __ATOMIC_SEQ_CST);
}

/* The program's functions get the program's pointer. */
static void test_context(void)
{
    er_config config;
    er_config_init(&config, sizeof config);
    config.memory = 32 * MIB;
    config.swap = 0;
    config.context = &reports;
    config.report = note;
    config.high_stuck = note_stuck;
    er_manager *manager = NULL;
    GOOD(er_start(&config, &manager));
    er_limits limits;
    er_limits_init(&limits, sizeof limits);
    limits.high = 2 * MIB;
    er_group *group = NULL;
    GOOD(er_group_create(manager, NULL, &limits, &group));
    er_map_options options = options_of(NULL, 8 * MIB, 0);
    options.group = group;
    void *address = NULL;
    GOOD(er_map(manager, &options, &address));
    for (size_t at = 0; at < 8 * MIB; at += PAGE)
        ((char *)address)[at] = 1;
    for (int look = 0; look < 500 && __atomic_load_n(&stuck, __ATOMIC_SEQ_CST) == 0; look++)
        usleep(10000);
    CHECK(stuck == 1);
    GOOD(er_unmap(manager, address));
    GOOD(er_stop(manager));
}

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

static const struct {
    const char *name;
    void (*run)(void);
} TESTS[] = {
    {"files", test_files},   {"memory", test_memory}, {"groups", test_groups},
    {"misuse", test_misuse}, {"again", test_again},   {"stale", test_stale},
    {"threads", test_threads}, {"fork", test_fork},   {"kernels", test_kernels},
    {"descriptors", test_descriptors}, {"errors", test_errors}, {"context", test_context},
    {"umap", test_umap},
};

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s DIRECTORY [TEST]\n", argv[0]);
        return 2;
    }
    directory = argv[1];
    int failed = 0, ran = 0;
    for (size_t at = 0; at < sizeof TESTS / sizeof *TESTS; at++) {
        if (argc > 2 && strcmp(argv[2], TESTS[at].name) != 0)
            continue;
        ran++;
        if (argc > 2) {
            TESTS[at].run();
        } else {
            /* Each in a process of its own. */
            pid_t child = fork();
            if (child == 0) {
                alarm(60);
                TESTS[at].run();
                _exit(0);
            }
            int status = 0;
            waitpid(child, &status, 0);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                fprintf(stderr, "%s: status %#x\n", TESTS[at].name, (unsigned)status);
                failed++;
            }
            snprintf(path, sizeof path, "%s/elbowroom-c-%d", directory, (int)child);
        }
        unlink(path);
    }
    printf("%d tests, %d failed\n", ran, failed);
    return ran == 0 || failed > 0;
}
