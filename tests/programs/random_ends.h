/* Steps of random.c: threads that end while they hold robust mutexes, and the words that the kernel clears at
 * their end, in memory that is out. Only with one worker, since they wait for each other. */
#include "random.h"
#include <sched.h>

#define MUTEXES 4
#define PATIENCE 20 /* seconds */
#define STACK (64 * PAGE)

struct ender {
    pthread_mutex_t *mutexes[MUTEXES];
    size_t count;
    unsigned how;
    atomic_int locked, go;
};

static void *hold_and_end(void *argument)
{
    struct ender *ender = argument;
    for (size_t i = 0; i < ender->count; i++)
        if (pthread_mutex_lock(ender->mutexes[i]))
            return NULL;
    ender->locked = 1;
    while (ender->how == 2)
        pause();
    while (!ender->go)
        usleep(200);
    if (ender->how == 1)
        pthread_exit(ender);
    if (ender->how == 3)
        syscall(SYS_exit, 0);
    return ender;
}

static int end_at_once(void *argument)
{
    struct ender *ender = argument;
    while (!ender->go)
        syscall(SYS_nanosleep, &(struct timespec){0, 200000}, NULL);
    return 0;
}

static struct timespec soon(void)
{
    struct timespec until;
    SYS(clock_gettime(CLOCK_REALTIME, &until));
    until.tv_sec += PATIENCE;
    return until;
}

static void get_out(struct worker *w, uint8_t *at)
{
    madvise(at, OWN_PAGES * PAGE, MADV_PAGEOUT);
    press(w);
}

static void begin_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t robust;
    CHECK(pthread_mutexattr_init(&robust) == 0, "pthread_mutexattr_init");
    CHECK(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0, "setrobust");
    CHECK(pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED) == 0, "setpshared");
    CHECK(pthread_mutex_init(mutex, &robust) == 0, "pthread_mutex_init");
}

/* What it says after the end of its owner. Nothing of it stays: numbers of threads are in it. */
static void end_mutex(struct worker *w, pthread_mutex_t *mutex, const struct timespec *until)
{
    int error = pthread_mutex_timedlock(mutex, until);
    put(w, " %s", error ? strerrorname_np(error) : "0");
    if (error == EOWNERDEAD)
        CHECK(pthread_mutex_consistent(mutex) == 0, "pthread_mutex_consistent");
    if (error == 0 || error == EOWNERDEAD)
        CHECK(pthread_mutex_unlock(mutex) == 0, "pthread_mutex_unlock");
    memset(mutex, 0, sizeof *mutex);
}

static void end_with_mutexes(struct worker *w, uint8_t *at, bool own_stack)
{
    struct ender ender = {.count = 1 + below(w, MUTEXES), .how = (unsigned)below(w, 4)};
    pthread_t thread;
    pthread_attr_t attributes;
    void *result;
    static const char *const names[] = {"return", "exit", "cancel", "call"};
    put(w, " %zu mutexes, %s", ender.count, names[ender.how]);
    go(w);
    for (size_t i = 0; i < ender.count; i++) {
        ender.mutexes[i] = (void *)(at + (100 * i + below(w, 100)) * PAGE + 64 * below(w, 60));
        begin_mutex(ender.mutexes[i]);
    }
    CHECK(pthread_attr_init(&attributes) == 0, "pthread_attr_init");
    if (own_stack)
        CHECK(pthread_attr_setstack(&attributes, at + OWN_PAGES * PAGE - STACK, STACK) == 0, "setstack");
    else
        CHECK(pthread_attr_setstacksize(&attributes, STACK) == 0, "setstacksize");
    int error = pthread_create(&thread, &attributes, hold_and_end, &ender);
    CHECK(error == 0, "pthread_create: %s", strerror(error));
    while (!ender.locked)
        usleep(200);
    get_out(w, at);
    ender.go = 1;
    if (ender.how == 2)
        pthread_cancel(thread);
    struct timespec until = soon();
    error = pthread_timedjoin_np(thread, &result, &until);
    CHECK(error == 0, "the thread has not ended: %s", strerror(error));
    put(w, ender.how == 3               ? ""
           : result == &ender           ? " joined"
           : result == PTHREAD_CANCELED ? " cancelled"
                                        : " odd");
    for (size_t i = 0; i < ender.count; i++)
        end_mutex(w, ender.mutexes[i], &until);
    if (own_stack) /* Its bytes are not the same each time. */
        memset(at + OWN_PAGES * PAGE - STACK, 0, STACK);
}

static void *do_nothing(void *unused)
{
    return unused;
}

/* libc keeps this stack for the threads of the steps. A new one could lie in a hole of the region. */
static void begin_ends(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0, "pthread_attr_init");
    CHECK(pthread_attr_setstacksize(&attributes, STACK) == 0, "setstacksize");
    CHECK(pthread_create(&thread, &attributes, do_nothing, NULL) == 0, "pthread_create");
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
}

static void end_with_word(struct worker *w, uint8_t *at)
{
    static uint8_t stack[64 * KIB] __attribute__((aligned(16)));
    struct ender ender = {0};
    volatile int *word = (int *)(void *)(at + below(w, OWN_PAGES) * PAGE + 4 * below(w, 1024));
    put(w, " clone");
    go(w);
    *word = 1;
    SYS(clone(end_at_once, stack + sizeof stack,
              CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                  CLONE_CHILD_CLEARTID,
              &ender, NULL, NULL, word));
    get_out(w, at);
    ender.go = 1;
    for (int i = 0; i < PATIENCE * 5000 && *word; i++)
        usleep(200);
    CHECK(*word == 0, "the word was not cleared");
}

/* A child process that holds a mutex in a file both have mapped. */
static void end_process(struct worker *w, uint8_t *at)
{
    pthread_mutex_t *mutex = (void *)(at + below(w, OWN_PAGES) * PAGE + 64 * below(w, 60));
    unsigned how = (unsigned)below(w, 3);
    int status;
    put(w, how == 0 ? " process exit" : how == 1 ? " process kill" : " process call");
    go(w);
    begin_mutex(mutex);
    pid_t pid = (pid_t)SYS(fork());
    if (pid == 0) {
        if (pthread_mutex_lock(mutex))
            _exit(8);
        if (how == 1)
            kill(getpid(), SIGKILL);
        if (how == 2)
            syscall(SYS_exit_group, 9);
        _exit(7);
    }
    SYS(waitpid(pid, &status, 0));
    put(w, " %#x", (unsigned)status);
    struct timespec until = soon();
    end_mutex(w, mutex, &until);
}

static void step_end_thread(struct worker *w)
{
    char path[4096];
    unsigned where = (unsigned)below(w, 4);
    bool word = chance(w, 25), own_stack = chance(w, 30) && where < 2;
    if (options.threads > 1)
        return;
    put(w, where < 2 ? " memory" : where == 2 ? " private" : " shared");
    put(w, own_stack ? " own-stack" : "");
    uint8_t *at;
    if (where < 2) {
        at = own_memory(w, OWN_PAGES);
    } else {
        file_path(path, sizeof path, w, MUTEX_FILE);
        int fd = (int)SYS(open(path, O_RDWR | O_CLOEXEC));
        int flags = (where == 2 ? MAP_PRIVATE : MAP_SHARED) | MAP_FIXED;
        at = (uint8_t *)SYS(mmap(w->own, OWN_PAGES * PAGE, RW, flags, fd, 0));
        close(fd);
    }
    if (!at)
        return;
    for (size_t page = 0; page < OWN_PAGES; page++)
        at[page * PAGE] = (uint8_t)page;
    if (word && where == 3)
        end_process(w, at);
    else if (word)
        end_with_word(w, at);
    else
        end_with_mutexes(w, at, own_stack);
    look(w, at, OWN_PAGES);
    own_end(w);
}
