/* What the library leaves behind, and what becomes of it in threads, at forks, and beside other processes. */
#define _GNU_SOURCE
#include "check.h"

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
    pid_t child = fork_child();
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
        pid_t child = fork_child();
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

/* A fork whose child cannot have the manager, for want of descriptors. Returns what fork returns. */
static pid_t fork_without_manager(void)
{
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 3;
    int error = dup(2), silent = open("/dev/null", O_WRONLY);
    CHECK(error >= 0 && silent >= 0 && dup2(silent, 2) == 2);
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    pid_t child = fork_child();
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0 && dup2(error, 2) == 2);
    CHECK(close(error) == 0 && close(silent) == 0);
    return child;
}

/* The manager that such a child starts has nothing to do with the groups and the memory of its parent's. */
static void test_another(void)
{
    er_manager *manager = start(), *another = NULL;
    er_limits limits;
    er_limits_init(&limits, sizeof limits);
    limits.max = 8 * MIB;
    er_group *old = NULL, *group = NULL;
    GOOD(er_group_create(manager, NULL, &limits, &old));
    er_map_options options = options_of(NULL, 64 * MIB, 0);
    options.group = old;
    void *address = NULL;
    GOOD(er_map(manager, &options, &address));
    pid_t child = fork_without_manager();
    CHECK(child >= 0);
    if (child == 0) {
        BAD(er_unmap(manager, address), EINVAL, "no manager");
        another = start_with(32 * MIB, 32 * MIB, NULL);
        GOOD(er_group_create(another, NULL, &limits, &group));
        er_group_stats stats;
        BAD(er_group_get_stats(old, &stats, sizeof stats), EINVAL, "no group");
        BAD(er_group_remove(old), EINVAL, "no group");
        GOOD(er_unmap(another, address));
        GOOD(er_group_get_stats(group, &stats, sizeof stats));
        CHECK(stats.anonymous_bytes == 0);
        /* The whole promise is there. */
        options.length = 36 * MIB;
        options.group = group;
        GOOD(er_map(another, &options, &address));
        for (size_t at = 0; at < 36 * MIB; at += PAGE)
            ((char *)address)[at] = 1;
        GOOD(er_group_get_stats(group, &stats, sizeof stats));
        CHECK(stats.peak_bytes <= 8 * MIB && stats.anonymous_bytes == 36 * MIB);
        GOOD(er_unmap(another, address));
        GOOD(er_stop(another));
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    GOOD(er_unmap(manager, address));
    GOOD(er_stop(manager));
}

static int *volatile awaited;

/* Registered before the library's own hooks, and so called after them, when the manager rests. */
static void touch_awaited(void)
{
    if (awaited != NULL)
        awaited[0]++;
}

static void register_early(void)
{
    pthread_atfork(touch_awaited, NULL, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*early)(void) = register_early;

/* A child that the manager cannot be copied for has none of the descriptors that were opened for the copy. */
static void test_given_up(void)
{
    er_manager *manager = start();
    char *bytes = (char *)map(manager, NULL, 48 * MIB, 0);
    for (size_t at = 0; at < 48 * MIB; at += PAGE)
        bytes[at] = 1;
    GOOD(er_advise(manager, bytes, MIB, ER_PAGEOUT));
    size_t descriptors = entries("/proc/self/fd");
    int ends[2];
    CHECK(pipe(ends) == 0);
    awaited = (int *)bytes;
    int error = dup(2);
    CHECK(dup2(ends[1], 2) == 2);
    pid_t child = fork_child();
    awaited = NULL;
    CHECK(dup2(error, 2) == 2 && close(error) == 0 && close(ends[1]) == 0);
    if (child == 0) {
        char text[500];
        ssize_t length = read(ends[0], text, sizeof text - 1);
        CHECK(length > 0);
        text[length] = 0;
        CHECK(strstr(text, "waited for memory itself") != NULL);
        CHECK(close(ends[0]) == 0 && entries("/proc/self/fd") == descriptors);
        _exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(close(ends[0]) == 0 && entries("/proc/self/fd") == descriptors && bytes[0] == 2);
    GOOD(er_unmap(manager, bytes));
    GOOD(er_stop(manager));
}

static unsigned char *at_exit;

static void fork_at_exit(void)
{
    pid_t child = fork_child();
    if (child == 0)
        _exit(at_exit[0] == 7 ? 0 : 1);
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child);
    _exit(status == 0 ? 42 : 43);
}

/* A function of atexit may fork, although the destructors of the thread have run. */
static void test_exit(void)
{
    pid_t child = fork_child();
    CHECK(child >= 0);
    if (child == 0) {
        er_manager *manager = start();
        at_exit = (unsigned char *)map(manager, NULL, MIB, 0);
        at_exit[0] = 7;
        BAD(er_close(NULL), EINVAL, "no open file");
        CHECK(atexit(fork_at_exit) == 0);
        pid_t other = fork_child();
        if (other == 0)
            _exit(0);
        CHECK(waitpid(other, NULL, 0) == other);
        exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

/* What was stored is in the file after `exit`, although the program has unmapped nothing. */
static void test_stores_at_exit(void)
{
    make_file(4);
    pid_t child = fork_child();
    CHECK(child >= 0);
    if (child == 0) {
        er_manager *manager = start();
        er_file *file = open_file(manager, ER_READ | ER_WRITE | ER_TRUST);
        map(manager, file, 0, ER_READ | ER_WRITE)[1] = 77;
        exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    int fd = open(path, O_RDONLY);
    uint64_t there = 0;
    CHECK(pread(fd, &there, 8, 8) == 8 && there == 77);
    CHECK(close(fd) == 0);
}

/* A file that the kernel maps for loads is not managed beside that: a store through one mapping is seen by
   the other one. */
static void test_kernels(void)
{
    make_file(16);
    int ready[2], end[2];
    CHECK(pipe(ready) == 0 && pipe(end) == 0);
    pid_t child = fork_child();
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

static const struct test TESTS[] = {
    {"again", test_again},
    {"stale", test_stale},
    {"threads", test_threads},
    {"fork", test_fork},
    {"another", test_another},
    {"given_up", test_given_up},
    {"exit", test_exit},
    {"stores_at_exit", test_stores_at_exit},
    {"kernels", test_kernels},
    {"descriptors", test_descriptors},
};

int main(int argc, char **argv)
{
    return run_tests(argc, argv, TESTS, sizeof TESTS / sizeof *TESTS);
}
