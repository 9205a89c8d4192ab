/* Each call of the library, as a program uses it and as a program misuses it. */
#define _GNU_SOURCE
#include "check.h"

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

/* What a group has promised, and what all have, is there: what is not in memory fits into swap. */
static void test_promises(void)
{
    er_manager *manager = start_with(32 * MIB, 0, NULL);
    er_limits limits;
    er_limits_init(&limits, sizeof limits);
    limits.max = 8 * MIB;
    er_group *group = NULL, *other = NULL, *inner = NULL;
    GOOD(er_group_create(manager, NULL, &limits, &group));
    er_map_options options = options_of(NULL, 20 * MIB, 0);
    options.group = group;
    void *address = NULL;
    BAD(er_map(manager, &options, &address), ENOMEM, "swap");
    GOOD(er_group_remove(group));
    GOOD(er_stop(manager));

    manager = start_with(32 * MIB, 26 * MIB, NULL); /* 1 MiB of each group is kept free. */
    GOOD(er_group_create(manager, NULL, &limits, &group));
    GOOD(er_group_create(manager, NULL, &limits, &other));
    limits.memory_swap_max = 12 * MIB;
    GOOD(er_group_create(manager, other, &limits, &inner));
    options.group = inner;
    BAD(er_map(manager, &options, &address), ENOMEM, "12582912 together");
    options.length = 12 * MIB;
    GOOD(er_map(manager, &options, &address));
    GOOD(er_unmap(manager, address));
    /* Both groups need the same swap. */
    options.group = group;
    options.length = 24 * MIB;
    GOOD(er_map(manager, &options, &address));
    char *bytes = address;
    options.group = other;
    BAD(er_map(manager, &options, &address), ENOMEM, "swap_dir");
    options.length = 16 * MIB;
    GOOD(er_map(manager, &options, &address));
    char *more = address;
    limits.memory_swap_max = ER_NO_LIMIT;
    limits.max = 4 * MIB;
    BAD(er_group_set_limits(group, &limits), EINVAL, "more swap than there is");
    GOOD(er_group_get_limits(group, &limits, sizeof limits));
    CHECK(limits.max == 8 * MIB);
    for (size_t at = 0; at < 24 * MIB; at += PAGE)
        bytes[at] = more[at % (16 * MIB)] = 1;
    GOOD(er_unmap(manager, more));
    limits.max = 4 * MIB;
    GOOD(er_group_set_limits(group, &limits));
    for (size_t at = 0; at < 24 * MIB; at += PAGE)
        CHECK(bytes[at] == 1);
    GOOD(er_unmap(manager, bytes));
    GOOD(er_stop(manager));
}

static struct racing {
    er_group *group;
    uint64_t max;
} racing[2];

static void *change(void *argument)
{
    const struct racing *racer = argument;
    er_limits limits;
    er_limits_init(&limits, sizeof limits);
    limits.max = racer->max;
    for (int round = 0; round < 5; round++)
        GOOD(er_group_set_limits(racer->group, &limits));
    return NULL;
}

/* Two threads change limits at the same time: the manager has those that the library names. */
static void test_changes(void)
{
    er_manager *manager = start();
    er_limits limits;
    er_limits_init(&limits, sizeof limits);
    er_group *group = NULL;
    GOOD(er_group_create(manager, NULL, &limits, &group));
    er_map_options options = options_of(NULL, 8 * MIB, 0);
    options.group = group;
    void *address = NULL;
    GOOD(er_map(manager, &options, &address));
    for (int round = 0; round < 400; round++) {
        pthread_t threads[2];
        for (int at = 0; at < 2; at++) {
            racing[at] = (struct racing){group, (at == 0 ? 2 : 4) * MIB};
            CHECK(pthread_create(&threads[at], NULL, change, &racing[at]) == 0);
        }
        for (int at = 0; at < 2; at++)
            CHECK(pthread_join(threads[at], NULL) == 0);
        GOOD(er_group_get_limits(group, &limits, sizeof limits));
        for (size_t at = 0; at < 8 * MIB; at += PAGE)
            ((char *)address)[at] = 1;
        er_group_stats stats;
        GOOD(er_group_get_stats(group, &stats, sizeof stats));
        CHECK(stats.usage_bytes <= limits.max && stats.usage_bytes > limits.max - MIB);
    }
    GOOD(er_unmap(manager, address));
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
    config.policy = ER_POLICY_LONG + 1;
    BAD(er_start(&config, &manager), EINVAL, "er_config.policy is 4");
    config.policy = ER_POLICY_KEPT;
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
    er_file *other = NULL;
    size_t done = 5;
    CHECK(er_file_write(other, 0, &size, 8, &done) == EINVAL && done == 0);
    int append = open(path, O_RDWR | O_APPEND), nothing = open(path, O_PATH), next = dup(0);
    CHECK(append >= 0 && nothing >= 0 && next >= 0 && close(next) == 0);
    BAD(er_open_fd(manager, append, ER_READ | ER_WRITE | ER_TRUST, &other), EINVAL, "O_APPEND");
    BAD(er_open_fd(manager, nothing, ER_READ, &other), EBADF, "descriptor");
    CHECK(dup(0) == next && close(next) == 0 && close(append) == 0 && close(nothing) == 0);
    /* A pipe that nobody writes to keeps nobody waiting. */
    char pipe_path[sizeof path + 10];
    snprintf(pipe_path, sizeof pipe_path, "%s-pipe", path);
    CHECK(mkfifo(pipe_path, 0600) == 0);
    alarm(20);
    GOOD(er_open(manager, pipe_path, ER_READ, &other));
    alarm(60);
    options = options_of(other, PAGE, ER_READ);
    BAD(er_map(manager, &options, &address), ENODEV, "cannot map");
    CHECK(unlink(pipe_path) == 0);
    GOOD(er_close(other));
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

static const struct test TESTS[] = {
    {"files", test_files},
    {"memory", test_memory},
    {"groups", test_groups},
    {"promises", test_promises},
    {"changes", test_changes},
    {"misuse", test_misuse},
    {"errors", test_errors},
    {"context", test_context},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, TESTS, sizeof TESTS / sizeof *TESTS);
}
