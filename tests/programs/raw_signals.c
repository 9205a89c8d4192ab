/* Signals as runtimes set them: by raw system calls, of which no library in the process learns.
 *   raw_signals MODE ORDER      ORDER: "early" prepares before the first large mapping, "late" after it
 *   mask      libc makes a thread with all signals blocked, which unblocks them raw; it recovers from faults
 *   left      a handler is left by a jump that is not libc's, with the mask set raw; that many times
 *   forward   a raw handler that calls what was there before it, which recovers
 *   default   a raw handler that makes the signal the default and returns
 *   bus       a raw handler of SIGBUS
 *   restore   a raw handler that is taken away again, by what was there before */
#include "common.h"
#include <sys/syscall.h>
#include <ucontext.h>

#define SIZE (32 * MIB)
#define ROUNDS 50

/* The kernel's own struct. */
struct raw_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

static uint8_t *large;
static volatile int recovered, forwarded;
static struct raw_action before;

static void raw_action(int sig, const struct raw_action *new, struct raw_action *old)
{
    SYS(syscall(SYS_rt_sigaction, sig, new, old, 8));
}

static void raw_mask(int how, uint64_t set)
{
    SYS(syscall(SYS_rt_sigprocmask, how, &set, NULL, 8));
}

#if defined(__x86_64__)
__attribute__((naked)) static void restorer(void)
{
    __asm__ volatile("mov $15, %eax\n syscall");
}
#define RESTORER 0x04000000
#define LOAD_BYTES 4
#define PROGRAM_COUNTER(context) ((context)->uc_mcontext.gregs[REG_RIP])
/* An instruction of known length, whose fault a handler steps over. */
#define FAULT(at) __asm__ volatile(".byte 0x44, 0x0f, 0xb6, 0x00" : : "a"(at) : "r8", "memory")
#else
static void restorer(void) {}
#define RESTORER 0
#define LOAD_BYTES 4
#define PROGRAM_COUNTER(context) ((context)->uc_mcontext.pc)
#define FAULT(at) __asm__ volatile("ldrb w9, [%0]" : : "r"(at) : "w9", "memory")
#endif

static void step_over(int sig, siginfo_t *info, void *context)
{
    CHECK((sig == SIGSEGV || sig == SIGBUS) && info->si_signo == sig, "signal %d", sig);
    recovered++;
    PROGRAM_COUNTER((ucontext_t *)context) += LOAD_BYTES;
}

static void set_raw(int sig, void *handler, uint64_t mask)
{
    struct raw_action action = {handler, SA_SIGINFO | SA_ONSTACK | SA_RESTART | RESTORER, restorer, mask};
    raw_action(sig, &action, &before);
}

static void set_libc(int sig, void *handler)
{
    struct sigaction action = {.sa_sigaction = (void (*)(int, siginfo_t *, void *))handler,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigfillset(&action.sa_mask);
    SYS(sigaction(sig, &action, NULL));
}

static void faults(void)
{
    for (int i = 1; i <= ROUNDS; i++) {
        FAULT((void *)16);
        CHECK(recovered == i, "fault %d: recovered %d times", i, recovered);
    }
}

static void *thread_unblocks(void *unused)
{
    raw_mask(SIG_SETMASK, 0);
    faults();
    sigset_t now;
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0, "pthread_sigmask");
    CHECK(!sigismember(&now, SIGSEGV) && !sigismember(&now, SIGTERM), "something is blocked");
    return unused;
}

static void masked_thread(void)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_t thread;
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &old) == 0, "pthread_sigmask");
    SPAWN(&thread, thread_unblocks, NULL);
    CHECK(pthread_sigmask(SIG_SETMASK, &old, &all) == 0, "pthread_sigmask");
    CHECK(sigismember(&all, SIGSEGV) && sigismember(&all, SIGTERM), "nothing is blocked");
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
}

static void *resume[5];

static void leave(int sig)
{
    (void)sig;
    recovered++;
    raw_mask(SIG_SETMASK, 0);
    __builtin_longjmp(resume, 1);
}

static void left_handlers(void)
{
    for (volatile int i = 1; i <= ROUNDS; i++) {
        if (__builtin_setjmp(resume) == 0) {
            FAULT((void *)16);
            FAIL("no fault");
        }
        CHECK(recovered == i, "fault %d: recovered %d times", i, recovered);
    }
}

static void forward(int sig, siginfo_t *info, void *context)
{
    forwarded++;
    ((void (*)(int, siginfo_t *, void *))before.handler)(sig, info, context);
}

static void make_default(int sig)
{
    struct raw_action action = {(void *)SIG_DFL, RESTORER, restorer, 0};
    raw_action(sig, &action, NULL);
}

static void prepare(const char *mode)
{
    if (!strcmp(mode, "mask"))
        set_libc(SIGSEGV, step_over);
    if (!strcmp(mode, "left"))
        set_libc(SIGSEGV, leave);
    if (!strcmp(mode, "forward")) {
        set_libc(SIGSEGV, step_over);
        set_raw(SIGSEGV, forward, ~0ul);
    }
    if (!strcmp(mode, "default"))
        set_raw(SIGSEGV, make_default, 0);
    if (!strcmp(mode, "bus"))
        set_raw(SIGBUS, step_over, ~0ul);
    if (!strcmp(mode, "restore")) {
        set_libc(SIGSEGV, step_over);
        set_raw(SIGSEGV, make_default, 0);
        struct raw_action back = before;
        raw_action(SIGSEGV, &back, NULL);
    }
}

static void map(void)
{
    large = (uint8_t *)SYS(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t i = 0; i < SIZE; i += PAGE)
        large[i] = (uint8_t)(i / PAGE + 1);
}

static void beyond_the_end(void)
{
    FILE *file = tmpfile();
    CHECK(file && ftruncate(fileno(file), 1) == 0, "no temporary file");
    uint8_t *at = (uint8_t *)SYS(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fileno(file), 0));
    FAULT(at + PAGE);
    CHECK(recovered == 1, "recovered %d times", recovered);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: raw_signals MODE ORDER");
    const char *mode = argv[1];
    bool early = !strcmp(argv[2], "early");
    if (early)
        prepare(mode);
    map();
    if (!early)
        prepare(mode);
    /* A second mapping, after which the first handler is not the only one that may be there. */
    map();
    if (!strcmp(mode, "mask"))
        masked_thread();
    else if (!strcmp(mode, "left"))
        left_handlers();
    else if (!strcmp(mode, "bus"))
        beyond_the_end();
    else
        faults();
    if (!strcmp(mode, "forward"))
        CHECK(forwarded == recovered, "forwarded %d times, recovered %d", forwarded, recovered);
    for (size_t i = 0; i < SIZE; i += PAGE)
        CHECK(large[i] == (uint8_t)(i / PAGE + 1), "page %zu has changed", i / PAGE);
    printf("recovered %d times\n", recovered);
    return 0;
}
