/* Children made in ways other than fork(3), and limits that a library in the process must not use up.
 *   children FILE SEED MODE     FILE is longer than 4 MiB; afterwards it must be the pattern of SEED */
#include "common.h"
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static int fd;
static uint8_t *base;
static size_t len;
static uint64_t seed;
static uint8_t *stack;
#define STACK_SIZE ((size_t)256 * 1024)

/* The file has what was stored a moment ago. `at` differs from call to call. */
static int read_it(void *argument)
{
    (void)argument;
    uint8_t *bytes = stack + STACK_SIZE;
    pread_all(fd, bytes, len, 0);
    pattern_check(seed, 0, bytes, len, "what the child reads");
    return 42;
}

static void expect(pid_t child, const char *what)
{
    int status;
    SYS(child);
    SYS(waitpid(child, &status, __WALL));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "%s: the child's wait status is %#x", what, status);
    printf("%s\n", what);
}

static void store_again(uint64_t next)
{
    seed = next;
    pattern_fill(seed, 0, base, len);
}

static void each_way(void)
{
    uint64_t last = seed;
    void *top = stack + STACK_SIZE;
    store_again(last + 1);
    expect(clone(read_it, top, SIGCHLD, NULL), "clone");
    store_again(last + 2);
    pid_t parent_tid = 0, child_tid = 0;
    expect(clone(read_it, top, CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD, NULL, &parent_tid, NULL,
                 &child_tid),
           "clone with seven arguments");
    CHECK(parent_tid != 0 && child_tid == 0, "the thread ids are %d and %d", parent_tid, child_tid);
    store_again(last + 3);
    expect(clone(read_it, top, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL), "clone with the parent's memory");
    store_again(last + 4);
    pid_t child = _Fork();
    if (child == 0)
        _exit(read_it(NULL));
    expect(child, "_Fork");
    store_again(last + 5);
    child = fork();
    if (child == 0)
        _exit(read_it(NULL));
    expect(child, "fork");
    store_again(last + 6);
    child = vfork();
    if (child == 0)
        _exit(42);
    expect(child, "vfork");
    SYS_FAILS(clone(NULL, top, SIGCHLD, NULL), EINVAL);
    store_again(last);
}

static void lists(const char *self, const char *path, const char *seed_text)
{
    char *env[] = {"MARK=there", NULL};
    pid_t child = fork();
    if (child == 0) {
        SYS_FAILS(execl("/nowhere/at/all", "self", path, NULL), ENOENT);
        SYS_FAILS(execlp("nowhere-at-all", "self", path, NULL), ENOENT);
        execle(self, "self", path, seed_text, "arguments", "1", "2", "3", "4", "5", "6", "7", NULL, env);
        _exit(1);
    }
    expect(child, "execle");
    setenv("MARK", "there", 1);
    child = fork();
    if (child == 0) {
        execl(self, "self", path, seed_text, "arguments", "1", "2", "3", "4", "5", "6", "7", NULL);
        _exit(1);
    }
    expect(child, "execl");
    child = fork();
    if (child == 0) {
        execlp(self, "self", path, seed_text, "arguments", "1", "2", "3", "4", "5", "6", "7", NULL);
        _exit(1);
    }
    expect(child, "execlp");
}

/* A program inherits the mask of who executes it. */
static void masks(void)
{
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    SYS(sigprocmask(SIG_SETMASK, &all, NULL));
    pid_t child = vfork();
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &none, NULL);
        execl("/bin/sh", "sh", "-c", "kill -SEGV $$", NULL);
        _exit(1);
    }
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the child ended with %#x", status);
    child = (pid_t)SYS(fork());
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "kill -SEGV $$; exit 42", NULL);
        _exit(1);
    }
    expect(child, "a child that inherits a mask");
    SYS(sigprocmask(SIG_SETMASK, &none, NULL));
}

static void print_limit(int resource)
{
    struct rlimit limit;
    SYS(getrlimit(resource, &limit));
    printf("limit %d: %lld, %lld\n", resource, (long long)limit.rlim_cur, (long long)limit.rlim_max);
    fflush(stdout);
}

/* What is left of a limit is for the program alone. */
static void limits(int resource, bool before)
{
    struct rlimit limit;
    SYS(getrlimit(resource, &limit));
    limit.rlim_cur = 3ull << 30;
    SYS(setrlimit(resource, &limit));
    if (before)
        base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    store_again(seed);
    print_limit(resource);
    struct rlimit old;
    limit.rlim_cur = 2ull << 30;
    SYS(prlimit(0, resource, &limit, &old));
    CHECK(old.rlim_cur == 3ull << 30, "prlimit says that it was %llu", (unsigned long long)old.rlim_cur);
    print_limit(resource);
    void *large =
        mmap(NULL, 1ull << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(large != MAP_FAILED, "a GiB below the limit cannot be mapped: %s", strerror(errno));
    void *larger =
        mmap(NULL, 8ull << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(larger == MAP_FAILED && errno == ENOMEM, "8 GiB beyond the limit were mapped");
    pid_t child = (pid_t)SYS(vfork());
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", resource == RLIMIT_AS ? "ulimit -v; exit 42" : "ulimit -d; exit 42",
              NULL);
        _exit(1);
    }
    expect(child, "limits of a child");
    SYS_FAILS(setrlimit(resource, (void *)16), EFAULT);
    SYS_FAILS(getrlimit(resource, (void *)16), EFAULT);
    SYS(munmap(large, 1ull << 30));
    SYS(msync(base, len, MS_SYNC));
}

/* A first mapping under a limit that leaves room for nothing more than it. */
static void low_limit(void)
{
    struct rlimit limit = {.rlim_cur = 400 * MIB, .rlim_max = 400 * MIB};
    SYS(setrlimit(RLIMIT_AS, &limit));
    if (geteuid() == 0)
        SYS(seteuid(65534)); /* which may not raise the hard limit */
    base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    store_again(seed);
    print_limit(RLIMIT_AS);
    if (getuid() == 0)
        SYS(seteuid(0));
    exit(5);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 4, "usage: children FILE SEED MODE");
    seed = strtoull(argv[2], NULL, 0);
    const char *mode = argv[3];
    if (!strcmp(mode, "arguments")) {
        CHECK(argc == 11 && !strcmp(argv[10], "7") && !strcmp(argv[4], "1"), "%d arguments", argc);
        CHECK(getenv("MARK") && !strcmp(getenv("MARK"), "there"), "the environment is another");
        return 42;
    }
    fd = (int)SYS(open(argv[1], O_RDWR));
    len = file_size(fd);
    stack = mmap(NULL, STACK_SIZE + len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED, "mmap: %s", strerror(errno));
    if (!strcmp(mode, "low-limit"))
        low_limit();
    if (!strcmp(mode, "limits-before"))
        limits(RLIMIT_AS, true);
    if (!strcmp(mode, "limits-data-before"))
        limits(RLIMIT_DATA, true);
    if (!base)
        base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    store_again(seed);
    if (!strcmp(mode, "ways"))
        each_way();
    if (!strcmp(mode, "lists"))
        lists(argv[0], argv[1], argv[2]);
    if (!strcmp(mode, "masks"))
        masks();
    if (!strcmp(mode, "limits"))
        limits(RLIMIT_AS, false);
    if (!strcmp(mode, "limits-data"))
        limits(RLIMIT_DATA, false);
    if (!strcmp(mode, "user-namespace")) {
        int r = unshare(CLONE_NEWUSER);
        CHECK(r == 0 || errno == EINVAL, "unshare: %s", strerror(errno));
    }
    if (!strcmp(mode, "forks"))
        for (int i = 0; i < 3; i++) {
            pid_t child = (pid_t)SYS(fork());
            if (child == 0 && i == 2)
                execl("/bin/sh", "sh", "-c", "exit 42", NULL);
            if (child == 0)
                _exit(42);
            expect(child, "a fork");
        }
    return 0;
}
