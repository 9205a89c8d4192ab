/* What the kernel stores to when a thread ends, in memory that is out of reach at that moment.
 *   thread_ends MODE MIB      MIB: more than fits, which is used to get the rest out
 *   return, exit, cancel, c11     threads that hold a robust mutex end so
 *   key                           the same; a destructor of thread-specific data locks it
 *   many                          200 mutexes on pages of their own
 *   clone                         the word that clone(2) is given is cleared
 *   stack                         threads whose stacks the program gives, in the same memory, are joined
 *   process                       a child process that holds one in a shared file ends by exit */
#include "common.h"
#include <sched.h>
#include <sys/syscall.h>
#include <threads.h>

#define MANY 200
#define SHARED_SIZE (4 * MIB)

static uint8_t *area;
static size_t pressure;
static pthread_mutex_t *mutexes[MANY];
static int count = 1;
static atomic_int locked, go;
static pthread_key_t key;

static uint8_t *map(size_t bytes)
{
    return (uint8_t *)SYS(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/* Gets everything else out. */
static void press(void)
{
    madvise(area, 8 * MIB, MADV_PAGEOUT);
    uint8_t *more = map(pressure);
    uint64_t value = 1;
    for (size_t i = 0; i < pressure; i += 8) {
        value = value * 6364136223846793005u + 1442695040888963407u;
        *(uint64_t *)(more + i) = value;
    }
    SYS(munmap(more, pressure));
}

static void new_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    CHECK(pthread_mutexattr_init(&attributes) == 0, "pthread_mutexattr_init");
    CHECK(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0, "setrobust");
    CHECK(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0, "setpshared");
    CHECK(pthread_mutex_init(mutex, &attributes) == 0, "pthread_mutex_init");
}

static void lock_all(void)
{
    for (int i = 0; i < count; i++)
        CHECK(pthread_mutex_lock(mutexes[i]) == 0, "pthread_mutex_lock");
    locked = 1;
}

static void wait_for_go(void)
{
    while (!go)
        usleep(1000);
}

static void *returns(void *unused)
{
    lock_all();
    wait_for_go();
    return unused;
}

static void *exits(void *unused)
{
    lock_all();
    wait_for_go();
    pthread_exit(unused);
}

static void *is_cancelled(void *unused)
{
    lock_all();
    for (;;)
        pause();
    return unused;
}

static int returns_int(void *unused)
{
    (void)unused;
    lock_all();
    wait_for_go();
    return 7;
}

static void lock_in_destructor(void *unused)
{
    (void)unused;
    lock_all();
    wait_for_go();
}

static void *has_a_key(void *unused)
{
    CHECK(pthread_setspecific(key, &key) == 0, "pthread_setspecific");
    return unused;
}

static void wait_until_locked(void)
{
    while (!locked)
        usleep(1000);
    press();
}

static void owners_are_dead(void)
{
    struct timespec until;
    SYS(clock_gettime(CLOCK_REALTIME, &until));
    until.tv_sec += 20;
    for (int i = 0; i < count; i++) {
        int r = pthread_mutex_timedlock(mutexes[i], &until);
        CHECK(r == EOWNERDEAD, "mutex %d: %s", i, r ? strerrorname_np(r) : "0");
        CHECK(pthread_mutex_consistent(mutexes[i]) == 0, "pthread_mutex_consistent");
        CHECK(pthread_mutex_unlock(mutexes[i]) == 0, "pthread_mutex_unlock");
    }
}

static void robust(const char *mode)
{
    count = strcmp(mode, "many") ? 1 : MANY;
    for (int i = 0; i < count; i++)
        new_mutex(mutexes[i] = (pthread_mutex_t *)(area + (size_t)i * 8 * PAGE + 64 * (i % 60)));
    if (!strcmp(mode, "c11")) {
        thrd_t thread;
        int result = 0;
        CHECK(thrd_create(&thread, returns_int, NULL) == thrd_success, "thrd_create");
        wait_until_locked();
        go = 1;
        CHECK(thrd_join(thread, &result) == thrd_success && result == 7, "thrd_join: %d", result);
        return owners_are_dead();
    }
    pthread_t thread;
    bool cancel = !strcmp(mode, "cancel");
    void *(*start)(void *) = !strcmp(mode, "exit")  ? exits
                             : cancel               ? is_cancelled
                             : !strcmp(mode, "key") ? has_a_key
                                                    : returns;
    CHECK(pthread_key_create(&key, lock_in_destructor) == 0, "pthread_key_create");
    SPAWN(&thread, start, &key);
    wait_until_locked();
    go = 1;
    if (cancel)
        CHECK(pthread_cancel(thread) == 0, "pthread_cancel");
    void *result;
    CHECK(pthread_join(thread, &result) == 0, "pthread_join");
    CHECK(result == (cancel ? PTHREAD_CANCELED : &key), "the thread's result is %p", result);
    owners_are_dead();
}

static int cloned(void *unused)
{
    (void)unused;
    while (!go)
        syscall(SYS_nanosleep, &(struct timespec){0, 1000000}, NULL);
    return 0;
}

static void cleared_word(void)
{
    static uint8_t stack[64 * KIB] __attribute__((aligned(16)));
    volatile int *word = (int *)(area + 4 * MIB);
    *word = 1;
    SYS(clone(cloned, stack + sizeof stack,
              CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                  CLONE_CHILD_CLEARTID,
              NULL, NULL, NULL, word));
    press();
    go = 1;
    for (int i = 0; i < 2000 && *word; i++)
        usleep(10000);
    CHECK(*word == 0, "the word was not cleared");
}

static void *on_its_stack(void *round)
{
    wait_for_go();
    return round;
}

static void given_stacks(void)
{
    enum { THREADS = 8, BYTES = 256 * KIB };
    for (size_t round = 1; round <= 3; round++) {
        pthread_t threads[THREADS];
        go = 0;
        for (int i = 0; i < THREADS; i++) {
            pthread_attr_t attributes;
            CHECK(pthread_attr_init(&attributes) == 0, "pthread_attr_init");
            CHECK(pthread_attr_setstack(&attributes, area + (size_t)i * BYTES, BYTES) == 0, "setstack");
            CHECK(pthread_create(&threads[i], &attributes, on_its_stack, (void *)round) == 0,
                  "pthread_create");
        }
        press();
        go = 1;
        for (int i = 0; i < THREADS; i++) {
            void *result;
            CHECK(pthread_join(threads[i], &result) == 0 && result == (void *)round, "pthread_join");
        }
    }
}

static void in_a_file(void)
{
    FILE *file = tmpfile();
    CHECK(file && ftruncate(fileno(file), SHARED_SIZE) == 0, "no temporary file");
    int fd = fileno(file);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        uint8_t *at = map_file(fd, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        mutexes[0] = (pthread_mutex_t *)(at + MIB);
        new_mutex(mutexes[0]);
        lock_all();
        exit(0);
    }
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(status == 0, "the child ended with %#x", status);
    mutexes[0] = (pthread_mutex_t *)(map_file(fd, SHARED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, 0) + MIB);
    owners_are_dead();
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: thread_ends MODE MIB");
    pressure = strtoull(argv[2], NULL, 0) * MIB;
    area = map(8 * MIB);
    memset(area, 1, 8 * MIB);
    if (!strcmp(argv[1], "clone"))
        cleared_word();
    else if (!strcmp(argv[1], "stack"))
        given_stacks();
    else if (!strcmp(argv[1], "process"))
        in_a_file();
    else
        robust(argv[1]);
    for (size_t i = 7 * MIB; i < 8 * MIB; i++)
        CHECK(area[i] == 1, "byte %zu has changed", i);
    puts("ok");
    return 0;
}
