/* Ends in which nothing of a library in the process seems to have a chance to run: handlers that are reset by
 * their signal, abort, signals that are ignored, alternate stacks with hardly any room.
 *   ends2 FILE SEED MODE     FILE is longer than 4 MiB; afterwards it must be the pattern of SEED
 * A mode that starts with "early-" prepares its signals before the file is mapped. */
#include "common.h"
#include <assert.h>
#include <sys/auxv.h>
#include <sys/mount.h>
#include <sys/syscall.h>

static int fd;
static uint8_t *base;
static size_t len;
static uint64_t seed;
static jmp_buf back;
static volatile int calls;

static void say(const char *text)
{
    if (write(1, text, strlen(text)) < 0)
        _exit(97);
}

static void set(int sig, void *handler, int flags)
{
    struct sigaction action = {.sa_handler = (void (*)(int))handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR1);
    SYS(sigaction(sig, &action, NULL));
}

static void describe(int sig)
{
    struct sigaction action;
    sigset_t mask;
    SYS(sigaction(sig, NULL, &action));
    SYS(sigprocmask(SIG_BLOCK, NULL, &mask));
    char text[200];
    snprintf(text, sizeof text,
             "signal %d: handler %s, flags %#x, blocks USR1 %d; now blocked: itself %d, USR1 %d\n", sig,
             action.sa_handler == SIG_DFL ? "default" : action.sa_handler == SIG_IGN ? "ignored" : "own",
             (unsigned)action.sa_flags, sigismember(&action.sa_mask, SIGUSR1), sigismember(&mask, sig),
             sigismember(&mask, SIGUSR1));
    say(text);
}

static void once(int sig)
{
    describe(sig);
    if (++calls == 2)
        _exit(96);
    raise(sig);
    say("raised again\n");
}

static void once_info(int sig, siginfo_t *info, void *context)
{
    CHECK(info->si_signo == sig && info->si_code == SI_TKILL && info->si_pid == getpid() && context,
          "wrong siginfo");
    once(sig);
}

static void return_after_store(int sig)
{
    describe(sig);
    pattern_fill(seed, 0, base, len);
}

static void jump_back(int sig)
{
    describe(sig);
    longjmp(back, 1);
}

static void default_and_return(int sig)
{
    signal(sig, SIG_DFL);
}

/* The stack's end is where a page without access begins, as Rust's and Go's runtimes have it. */
static void use_alternate_stack(size_t size)
{
    size_t room = (size + PAGE - 1) / PAGE * PAGE;
    uint8_t *at = mmap(NULL, PAGE + room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    SYS(mprotect(at + PAGE, room, PROT_READ | PROT_WRITE));
    /* What is below `size` bytes from the top must stay as it is, too. */
    stack_t stack = {.ss_sp = at + PAGE + room - size, .ss_size = size};
    SYS(sigaltstack(&stack, NULL));
}

static size_t least_stack(void)
{
    size_t least = getauxval(AT_MINSIGSTKSZ);
    return least ? least : (size_t)MINSIGSTKSZ;
}

static __attribute__((noinline)) int overflow(int n)
{
    volatile char some[4096];
    some[0] = (char)n;
    return n < 0 ? 0 : overflow(n + 1) + some[0];
}

static void crash(void)
{
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
}

static void must_not_run(int sig)
{
    describe(sig);
    _exit(95);
}

static void crash_again(int sig)
{
    describe(sig);
    crash();
}

static sigjmp_buf leave;

static void jump_away(int sig)
{
    if (!probe_active)
        describe(sig);
    siglongjmp(leave, 1);
}

static void print_mask(const char *when)
{
    sigset_t mask, pending;
    SYS(pthread_sigmask(SIG_BLOCK, NULL, &mask));
    SYS(sigpending(&pending));
    char text[200];
    snprintf(text, sizeof text, "%s: SEGV %d, BUS %d, USR1 %d; pending SEGV %d\n", when,
             sigismember(&mask, SIGSEGV), sigismember(&mask, SIGBUS), sigismember(&mask, SIGUSR1),
             sigismember(&pending, SIGSEGV));
    say(text);
}

static void block(int how, int sig)
{
    sigset_t mask;
    sigemptyset(&mask);
    if (sig)
        sigaddset(&mask, sig);
    else
        sigfillset(&mask);
    SYS(pthread_sigmask(how, &mask, NULL));
}

static void *crash_in_thread(void *argument)
{
    print_mask("in a thread");
    block(SIG_UNBLOCK, SIGUSR1);
    print_mask("USR1 unblocked");
    crash();
    return argument;
}

static void count(int sig)
{
    (void)sig;
    calls++;
}

/* The signals that instructions raise, blocked. */
static void blocked(const char *mode)
{
    if (!strcmp(mode, "blocked-segv")) {
        set(SIGSEGV, must_not_run, 0);
        block(SIG_BLOCK, SIGSEGV);
        print_mask("blocked");
        crash();
    }
    if (!strcmp(mode, "blocked-default")) {
        block(SIG_SETMASK, 0);
        crash();
    }
    if (!strcmp(mode, "blocked-ill")) {
        block(SIG_BLOCK, SIGILL);
        __builtin_trap();
    }
    if (!strcmp(mode, "blocked-fpe")) {
        volatile int zero = 0;
        block(SIG_BLOCK, SIGFPE);
        calls = 100 / zero;
    }
    if (!strcmp(mode, "blocked-trap")) {
        block(SIG_BLOCK, SIGTRAP);
#ifdef __x86_64__
        __asm__ volatile("int3");
#endif
        raise(SIGKILL);
    }
    if (!strcmp(mode, "blocked-thread")) {
        pthread_t id;
        set(SIGSEGV, must_not_run, 0);
        block(SIG_SETMASK, 0);
        SPAWN(&id, crash_in_thread, NULL);
        pthread_join(id, NULL);
    }
    if (!strcmp(mode, "blocked-nested")) {
        set(SIGSEGV, crash_again, 0);
        crash();
    }
    if (!strcmp(mode, "blocked-by-term")) {
        struct sigaction action = {.sa_handler = crash_again};
        sigfillset(&action.sa_mask);
        SYS(sigaction(SIGTERM, &action, NULL));
        set(SIGSEGV, must_not_run, 0);
        raise(SIGTERM);
    }
    if (!strcmp(mode, "blocked-left")) {
        set(SIGSEGV, jump_away, 0);
        for (volatile int i = 0; i < 100; i++)
            if (sigsetjmp(leave, 1) == 0)
                crash();
        print_mask("after siglongjmp");
        if (sigsetjmp(leave, 0) == 0)
            crash();
        print_mask("after longjmp");
        crash();
    }
    if (!strcmp(mode, "blocked-sent")) {
        set(SIGSEGV, count, 0);
        block(SIG_BLOCK, SIGSEGV);
        kill(getpid(), SIGSEGV);
        print_mask("sent");
        CHECK(calls == 0, "called");
        block(SIG_UNBLOCK, SIGSEGV);
        CHECK(calls == 1, "not called");
        print_mask("unblocked");
        block(SIG_BLOCK, SIGSEGV);
        raise(SIGSEGV);
        sigset_t mask;
        int got;
        sigemptyset(&mask);
        sigaddset(&mask, SIGSEGV);
        CHECK(sigwait(&mask, &got) == 0 && got == SIGSEGV && calls == 1, "sigwait");
        print_mask("waited for");
        raise(SIGSEGV);
        block(SIG_SETMASK, SIGUSR1);
        CHECK(calls == 2, "not called");
        print_mask("another mask");
        set(SIGSEGV, (void *)SIG_DFL, 0);
        block(SIG_BLOCK, SIGSEGV);
        raise(SIGSEGV);
        print_mask("sent by default");
        block(SIG_UNBLOCK, SIGSEGV);
    }
}

static void abort_in_handler(int sig)
{
    describe(sig);
    abort();
}

static void prepare(const char *mode)
{
    if (!strcmp(mode, "once"))
        set(SIGTERM, once, SA_RESETHAND);
    if (!strcmp(mode, "once-info"))
        set(SIGTERM, once_info, SA_RESETHAND | SA_SIGINFO);
    if (!strcmp(mode, "once-nodefer"))
        set(SIGTERM, once, SA_RESETHAND | SA_NODEFER | SA_RESTART);
    if (!strcmp(mode, "once-sysv"))
        CHECK(sysv_signal(SIGTERM, once) == SIG_DFL, "not the default");
    if (!strcmp(mode, "once-real-time"))
        set(SIGRTMAX, once, SA_RESETHAND);
    if (!strcmp(mode, "once-segv"))
        set(SIGSEGV, describe, SA_RESETHAND);
    if (!strcmp(mode, "abort-handler") || !strcmp(mode, "assert-handler"))
        set(SIGABRT, return_after_store, 0);
    if (!strcmp(mode, "abort-once"))
        set(SIGABRT, return_after_store, SA_RESETHAND);
    if (!strcmp(mode, "abort-signal"))
        CHECK(signal(SIGABRT, return_after_store) == SIG_DFL, "not the default");
    if (!strcmp(mode, "abort-jump"))
        set(SIGABRT, jump_back, SA_NODEFER);
    if (!strcmp(mode, "abort-ignored") || !strcmp(mode, "assert-ignored"))
        set(SIGABRT, (void *)SIG_IGN, 0);
    if (!strcmp(mode, "abort-blocked")) {
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, SIGABRT);
        SYS(sigprocmask(SIG_BLOCK, &mask, NULL));
    }
    if (!strcmp(mode, "segv-ignored"))
        set(SIGSEGV, (void *)SIG_IGN, 0);
    if (!strcmp(mode, "small-stack"))
        use_alternate_stack(8192);
    if (!strcmp(mode, "least-stack"))
        use_alternate_stack(least_stack() + 2048);
    if (!strcmp(mode, "overflow")) {
        use_alternate_stack(8192);
        set(SIGSEGV, default_and_return, SA_ONSTACK);
    }
    if (!strcmp(mode, "overflow-abort")) {
        use_alternate_stack(8192);
        set(SIGSEGV, abort_in_handler, SA_ONSTACK);
    }
    if (!strcmp(mode, "overflow-default"))
        use_alternate_stack(8192);
    if (!strcmp(mode, "small-stack-once")) {
        use_alternate_stack(8192);
        set(SIGTERM, describe, SA_ONSTACK | SA_RESETHAND);
    }
}

static void end(const char *mode)
{
    if (!strcmp(mode, "once-real-time")) {
        raise(SIGRTMAX);
        raise(SIGRTMAX);
    }
    if (!strncmp(mode, "once", 4) && strcmp(mode, "once-segv"))
        raise(SIGTERM);
    if (!strcmp(mode, "once-segv") || !strcmp(mode, "segv-ignored"))
        crash();
    if (!strcmp(mode, "abort-jump")) {
        if (setjmp(back) == 0)
            abort();
        say("went on\n");
        pattern_fill(seed, 0, base, len);
        set(SIGABRT, (void *)SIG_DFL, 0);
    }
    if (!strncmp(mode, "abort", 5))
        abort();
    if (!strncmp(mode, "assert", 6))
        assert(!"this fails");
    if (!strncmp(mode, "overflow", 8))
        overflow(0);
    if (!strcmp(mode, "small-stack-once"))
        raise(SIGTERM);
    if (!strncmp(mode, "blocked", 7))
        blocked(mode);
    raise(SIGTERM);
}

/* Process 1 of a PID namespace: no default action ends it, and none interrupts what it waits for. */
static int first_process(void *argument)
{
    (void)argument;
    CHECK(getpid() == 1, "not process 1");
    SYS(mount("proc", "/proc", "proc", 0, NULL));
    base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    pattern_fill(seed, 0, base, len);
    struct timespec second = {1, 0}, none = {0, 0};
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        for (int i = 0; i < 20; i++) {
            nanosleep(&(struct timespec){0, 10000000}, NULL);
            kill(1, i % 2 ? SIGTERM : SIGUSR1);
        }
        _exit(0);
    }
    CHECK(nanosleep(&second, &none) == 0, "the sleep was interrupted");
    SYS(waitpid(child, NULL, 0));
    raise(SIGTERM);
    raise(SIGABRT);
    printf("still there\n");
    fflush(stdout);
    crash();
    return 1;
}

static void run_first_process(void)
{
    SYS(unshare(CLONE_NEWPID | CLONE_NEWNS));
    SYS(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
    pid_t child = (pid_t)SYS(fork());
    if (child == 0)
        _exit(first_process(NULL));
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "process 1 ended with %#x", status);
    exit(7);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: ends2 FILE SEED MODE");
    seed = strtoull(argv[2], NULL, 0);
    fd = (int)SYS(open(argv[1], O_RDWR));
    len = file_size(fd);
    const char *mode = argv[3];
    if (!strcmp(mode, "process-1"))
        run_first_process();
    bool early = !strncmp(mode, "early-", 6);
    mode += early ? 6 : 0;
    if (early)
        prepare(mode);
    base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    SYS(close(fd));
    if (!early)
        prepare(mode);
    pattern_fill(seed, 0, base, len);
    end(mode);
    return 2;
}
