/* Writers that are slowed down, and what others do to them meanwhile. The test makes the disk slow, and lets
 * little be dirty.
 *   throttled FILE SEED forever    stores all the time; says "ready" once it has for a while
 *   throttled FILE SEED signals    signals reach writers that wait
 *   throttled FILE SEED cancel     a writer that waits is cancelled
 *   throttled FILE SEED unmap      what a writer waits for is unmapped
 *   throttled FILE SEED truncate   the file is cut while writers wait
 *   throttled FILE SEED child      a child that stores to a file of its own, FILE.child, is killed
 *   throttled FILE SEED verify     checks what `signals`, `cancel` and `child` have stored */
#include "common.h"

#define THREADS 4

static uint8_t *base;
static size_t len, part;
static uint64_t seed;
static atomic_bool over;
static atomic_int handled, faulted;
static atomic_ulong stores[THREADS];

/* Stores the pattern to a part of its own, page by page and in steps, as often as there is time for. */
static void *writer(void *argument)
{
    size_t number = (size_t)argument;
    for (size_t pass = 0; pass == 0 || !over; pass++) {
        for (size_t page = 0; page < part / PAGE && (pass == 0 || !over); page++) {
            size_t at = number * part + page * 7 % (part / PAGE) * PAGE;
            pattern_fill(seed, at, base + at, PAGE);
            stores[number]++;
        }
    }
    return NULL;
}

static void on_signal(int sig)
{
    (void)sig;
    handled++;
}

static _Thread_local sigjmp_buf out;

static void on_fault(int sig)
{
    (void)sig;
    faulted++;
    siglongjmp(out, 1);
}

/* The same, until it raises a signal. */
static void *faulting_writer(void *argument)
{
    if (sigsetjmp(out, 1) == 0) {
        for (;;)
            writer(argument);
    }
    return NULL;
}

static void *cancelled_writer(void *argument)
{
    int old;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    for (;;)
        writer(argument);
    return NULL;
}

static unsigned long all_stores(void)
{
    unsigned long sum = 0;
    for (int i = 0; i < THREADS; i++)
        sum += stores[i];
    return sum;
}

static void wait_for_stores(unsigned long more)
{
    for (unsigned long until = all_stores() + more; all_stores() < until;)
        usleep(1000);
}

static void handle(int sig, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    SYS(sigaction(sig, &action, NULL));
}

static void start(pthread_t *threads, void *(*function)(void *))
{
    for (size_t i = 0; i < THREADS; i++)
        SPAWN(&threads[i], function, (void *)i);
    wait_for_stores(400);
}

static void join(pthread_t *threads)
{
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
}

static void child(const char *file)
{
    char path[4096], number[32];
    snprintf(path, sizeof path, "%s.child", file);
    snprintf(number, sizeof number, "%llu", (unsigned long long)seed);
    int pipes[2];
    SYS(pipe(pipes));
    pid_t pid = (pid_t)SYS(fork());
    if (pid == 0) {
        dup2(pipes[1], 1);
        execl("/proc/self/exe", "throttled", path, number, "forever", NULL);
        _exit(99);
    }
    char ready;
    CHECK(read(pipes[0], &ready, 1) == 1, "the child ended");
    SYS(kill(pid, SIGKILL));
    int status;
    SYS(waitpid(pid, &status, 0));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %#x", status);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: throttled FILE SEED MODE");
    const char *mode = argv[3];
    seed = strtoull(argv[2], NULL, 0);
    int fd = (int)SYS(open(argv[1], O_RDWR));
    len = file_size(fd);
    part = len / THREADS;
    pthread_t threads[THREADS];
    base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    if (!strcmp(mode, "verify")) {
        pattern_check(seed, 0, base, len, "what writers that waited have stored");
    } else if (!strcmp(mode, "forever")) {
        start(threads, writer);
        printf("ready\n");
        fflush(stdout);
        pause();
    } else if (!strcmp(mode, "signals")) {
        handle(SIGUSR1, on_signal);
        start(threads, writer);
        for (int round = 0; round < 25; round++) {
            for (int i = 0; i < THREADS; i++) {
                int before = handled;
                CHECK(pthread_kill(threads[i], SIGUSR1) == 0, "pthread_kill");
                while (handled == before)
                    usleep(100);
            }
        }
        over = true;
        join(threads);
        CHECK(handled == 25 * THREADS, "%d signals were handled", handled);
    } else if (!strcmp(mode, "cancel")) {
        start(threads, cancelled_writer);
        over = true;
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_cancel(threads[i]) == 0, "pthread_cancel");
        for (int i = 0; i < THREADS; i++) {
            void *result;
            CHECK(pthread_join(threads[i], &result) == 0 && result == PTHREAD_CANCELED, "not cancelled");
        }
        for (size_t i = 0; i < THREADS; i++)
            writer((void *)i);
    } else if (!strcmp(mode, "unmap")) {
        handle(SIGSEGV, on_fault);
        start(threads, faulting_writer);
        SYS(munmap(base, len));
        join(threads);
        CHECK(faulted == THREADS, "%d writers were told", faulted);
    } else if (!strcmp(mode, "truncate")) {
        handle(SIGBUS, on_fault);
        start(threads, faulting_writer);
        SYS(ftruncate(fd, 0));
        join(threads);
        CHECK(faulted == THREADS, "%d writers were told", faulted);
        SYS(ftruncate(fd, (off_t)len));
        bytes_check(base, 0, len, "what was cut off");
        STORE_WORKS(base + 5, 6);
        SYS(msync(base, len, MS_SYNC));
    } else if (!strcmp(mode, "child")) {
        start(threads, writer);
        child(argv[1]);
        over = true;
        join(threads);
    } else {
        FAIL("what is %s?", mode);
    }
    printf("done\n");
    return 0;
}
