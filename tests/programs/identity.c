/* What a program can see of itself: nothing of it may depend on who runs it. Everything printed is compared
 * with the plain run.
 *   identity FILE SEED     FILE is the pattern of SEED, at least 4 MiB; it is not changed in the end */
#include "common.h"
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>

extern char **environ;

static const char *path;
static int fd;
static uint64_t seed;
static uint8_t *base;
static size_t len;

static void print_descriptors(const char *when)
{
    printf("%s: open descriptors", when);
    for (int i = 0; i < 1024; i++)
        if (fcntl(i, F_GETFD) != -1)
            printf(" %d(%d)", i, fcntl(i, F_GETFD));
    printf("\n");
}

static void print_signals(const char *when)
{
    sigset_t mask;
    SYS(sigprocmask(SIG_SETMASK, NULL, &mask));
    printf("%s: signals", when);
    for (int sig = 1; sig < 65; sig++) {
        struct sigaction action;
        if (sigaction(sig, NULL, &action) != 0)
            continue;
        if (action.sa_handler != SIG_DFL || sigismember(&mask, sig))
            printf(" %d:%s%s", sig,
                   action.sa_handler == SIG_IGN ? "ignored" : action.sa_handler ? "caught" : "",
                   sigismember(&mask, sig) ? "blocked" : "");
    }
    printf("\n");
}

static void print_process(int argc, char **argv)
{
    char name[17] = "";
    struct rlimit limit;
    prctl(PR_GET_NAME, name);
    printf("%d arguments, name %s, session %d, group %d\n", argc, name, getsid(0) == getpid(),
           getpgrp() == getpid());
    printf("argument 0 ends in %s\n", strrchr(argv[0], '/'));
    SYS(getrlimit(RLIMIT_NOFILE, &limit));
    printf("descriptors limited to %llu\n", (unsigned long long)limit.rlim_cur);
    SYS(getrlimit(RLIMIT_CORE, &limit));
    printf("core limited to %llu, dumpable %d\n", (unsigned long long)limit.rlim_cur, prctl(PR_GET_DUMPABLE));
    printf("marked by the test: %s\n", getenv("BEHAVIOUR_MARK"));
    SYS_FAILS(waitpid(-1, NULL, WNOHANG), ECHILD);
}

/* A descriptor's number is the lowest free one, and all are the program's to close. */
static void descriptors(void)
{
    int lowest = (int)SYS(dup(0));
    printf("the next descriptor is %d\n", lowest);
    for (int i = 3; i < 1024; i++)
        close(i);
    pattern_check(seed, 0, base, len, "after all descriptors were closed");
    for (size_t at = 0; at < len; at += 5 * PAGE)
        ((volatile uint8_t *)base)[at] = pattern_byte(seed, at);
    SYS(msync(base, len, MS_SYNC));
    fd = (int)SYS(open(path, O_RDWR));
    printf("the file is %d now\n", fd);
    struct rlimit limit, few = {.rlim_cur = (rlim_t)fd + 1};
    SYS(getrlimit(RLIMIT_NOFILE, &limit));
    few.rlim_max = limit.rlim_max;
    SYS(setrlimit(RLIMIT_NOFILE, &few));
    SYS_FAILS(dup(0), EMFILE);
    uint8_t *more = map_file(fd, len, PROT_READ, MAP_SHARED, 0);
    pattern_check(seed, 0, more, len, "mapped without a free descriptor");
    SYS(munmap(more, len));
    SYS(setrlimit(RLIMIT_NOFILE, &limit));
}

/* A POSIX lock is lost when its process closes any descriptor of the file: nobody may do that on our
 * behalf. */
static void posix_locks(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 100};
    SYS(fcntl(fd, F_SETLK, &lock));
    for (int i = 0; i < 5; i++) {
        uint8_t *again = map_file(fd, len, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        LOAD_GIVES(again + i * PAGE, pattern_byte(seed, i * PAGE));
        SYS(munmap(again, len));
    }
    fflush(stdout);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        struct flock seen = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 50, .l_len = 1};
        _exit(fcntl(fd, F_GETLK, &seen) == 0 && seen.l_type == F_WRLCK && seen.l_pid == getppid() ? 42 : 1);
    }
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "the lock is lost: status %#x", status);
    lock.l_type = F_UNLCK;
    SYS(fcntl(fd, F_SETLK, &lock));
}

/* A timer's handler interrupts faults and calls, touches mapped memory itself, and maps. */
static _Atomic unsigned ticks;

static void tick(int sig)
{
    (void)sig;
    int before = errno;
    unsigned n = ticks++;
    size_t at = mix(n) % len;
    if (base[at] != pattern_byte(seed, at))
        FAIL("in a handler the byte at %#zx is %#x", at, base[at]);
    if (n % 4 == 0) {
        uint8_t *own = mmap(NULL, 2 * MIB, PROT_READ, MAP_SHARED, fd, 0);
        if (own == MAP_FAILED || own[n % (2 * MIB)] != pattern_byte(seed, n % (2 * MIB)) ||
            munmap(own, 2 * MIB) != 0)
            FAIL("mapping in a handler: %s", strerror(errno));
    }
    errno = before;
}

static void interruptions(void)
{
    struct sigaction action = {.sa_handler = tick};
    sigemptyset(&action.sa_mask);
    SYS(sigaction(SIGALRM, &action, NULL)); /* no SA_RESTART: what may say EINTR under the kernel, may here */
    struct itimerval every = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    SYS(setitimer(ITIMER_REAL, &every, NULL));
    double end = now_seconds() + 1.0;
    for (unsigned i = 0; now_seconds() < end || ticks <= 20; i++) {
        CHECK(now_seconds() < end + 60, "%u ticks in a minute", ticks);
        uint8_t *own = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        size_t at = mix(i) % (len - 100 * PAGE);
        pattern_check(seed, at, own + at, 50 * PAGE, "under interruptions");
        own[at] = pattern_byte(seed, at);
        SYS(mprotect(own, len, PROT_READ));
        SYS(madvise(own, len, MADV_DONTNEED));
        if (i % 8 == 0)
            SYS(msync(own, len, MS_SYNC));
        SYS(munmap(own, len));
    }
    SYS(setitimer(ITIMER_REAL, &never, NULL));
    signal(SIGALRM, SIG_DFL);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: identity FILE SEED");
    path = argv[1];
    seed = strtoull(argv[2], NULL, 0);
    print_descriptors("at the start");
    print_signals("at the start");
    print_process(argc, argv);
    fd = (int)SYS(open(path, O_RDWR));
    len = file_size(fd);
    base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    pattern_check(seed, 0, base, len, "at the start");
    print_descriptors("with a mapping");
    print_signals("with a mapping");
    print_process(argc, argv);
    probe_install();
    PART(descriptors);
    PART(posix_locks);
    PART(interruptions);
    print_descriptors("at the end");
    return 0;
}
