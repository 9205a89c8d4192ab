/* Children that cannot have a copy of their parent's memory: fork fails, or the child has the memory from the
 * kernel.
 *   fork_refused MODE MIB [RESIDENT_MIB]    as in forked.h. MODE:
 *     refused    fork fails where there cannot be a copy (--fork fail)
 *     late       a fork takes longer than it may; the next one is right. late-refused: it fails
 *     denied     the child is denied system calls that a manager needs. filtered: one of them ends it
 *     other-user the process becomes another user's. other-user-refused: its forks fail
 *     few        a child can start no threads: the control group $GROUP is full. few-refused: forks fail
 * `refused`, `late` and the modes that end in `-refused` expect what only Elbowroom does: under the plain
 * kernel they do not pass. */
#include "forked.h"
#include "unseen.h"
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static void *fork_fails_here(void *argument)
{
    CHECK(fork() == -1, "fork succeeded");
    *(int *)argument = errno;
    return NULL;
}

/* Makes a child that finds what its parent stored, and ends. */
static void look_in_child(size_t pages)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        check(1, 0, pages, "child");
        exit(42);
    }
    succeeded(child, "child");
}

/* fork fails: with no descriptors left, on a stack in managed memory, and as a kind that has no copy. */
static void refused(void)
{
    size_t pages = len / 4096;
    struct rlimit limit, low;
    fill(1, 0, pages);
    SYS(getrlimit(RLIMIT_NOFILE, &limit));
    low = limit;
    low.rlim_cur = 16;
    SYS(setrlimit(RLIMIT_NOFILE, &low));
    for (int i = 0; i < 3; i++)
        SYS_FAILS(fork(), EAGAIN);
    SYS(setrlimit(RLIMIT_NOFILE, &limit));
    /* Nothing of the children that were not to be is left. */
    SYS_FAILS(waitpid(-1, NULL, WNOHANG), ECHILD);
    check(1, 0, pages, "parent");

    pthread_attr_t attributes;
    pthread_t thread;
    int error = 0;
    CHECK(pthread_attr_init(&attributes) == 0, "pthread_attr_init");
    CHECK(pthread_attr_setstack(&attributes, base, 1 << 20) == 0, "pthread_attr_setstack");
    CHECK(pthread_create(&thread, &attributes, fork_fails_here, &error) == 0, "pthread_create");
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    CHECK(error == ENOMEM, "errno is %d", error);
    fill(1, 0, 256);
    SYS_FAILS(_Fork(), ENOMEM);
    SYS_FAILS(waitpid(-1, NULL, WNOHANG), ECHILD);

    /* The next one is as it should be. */
    check(1, 0, pages, "parent");
    look_in_child(pages);
    check(1, 0, pages, "parent");
    check_resident("parent");
}

/* The status of a process whose fork was not late. */
#define NOT_LATE 77

/* The kernel takes longer to copy the page tables than a fork may take. */
static void late(bool then_fails)
{
    size_t pages = len / 4096, more = (size_t)16 << 30;
    /* What is shared is not copied, so this is private; and neither malloc nor mmap of libc makes it. Page
     * tables are what takes long: all but one of these pages are the kernel's one page of zeros. */
    uint8_t *other = (uint8_t *)UNSEEN(SYS_mmap, NULL, more, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(other != MAP_FAILED, "mmap");
    SYS(madvise(other, more, MADV_NOHUGEPAGE));
    *other = 1;
    SYS(madvise(other, more, MADV_POPULATE_READ));
    fill(1, 0, pages);
    pid_t first = (pid_t)SYS(fork());
    if (first == 0) {
        /* A late child is ended where it reads managed memory. It must never see a wrong word. */
        check(1, 0, pages, "a child without a copy");
        exit(42);
    }
    check(1, 0, pages, "parent");
    int status;
    SYS(waitpid(first, &status, 0));
    check(1, 0, pages, "parent");
    /* The thread that says that a fork is late may get no processor until the fork was made. Then the child
     * may begin before it is said, and has a whole copy. */
    if (WIFEXITED(status) && WEXITSTATUS(status) == 42)
        exit(NOT_LATE);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
          "a child that came late: the wait status is %#x", status);
    if (then_fails) {
        SYS_FAILS(fork(), ENOMEM);
    } else {
        look_in_child(pages);
    }
    check(1, 0, pages, "parent");
    SYS((int)UNSEEN(SYS_munmap, other, more));
}

/* From now on this thread, its children and their threads get EPERM for a system call, or are ended by it, if
 * its second argument is as given (0: whatever it is). */
static void deny(long call, unsigned long second, unsigned action)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | (second == 0 ? BPF_JGE : BPF_JEQ) | BPF_K, (uint32_t)second, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SYS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

struct denied {
    long call;
    unsigned long second;
    /* Whether a call is tried, and then fails or ends the process. */
    unsigned action;
};

/* Makes a child that has what its parent stored, can store itself, and ends. */
static void make_child(const char *what)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        check(1, 0, len / 4096, what);
        fill(2, 0, len / 4096);
        check(2, 0, len / 4096, what);
        exit(42);
    }
    succeeded(child, what);
}

static void *fork_denied(void *argument)
{
    struct denied *denied = argument;
    deny(denied->call, denied->second, denied->action);
    for (int i = 0; i < 2; i++) {
        make_child("a child that was denied something");
        SYS_FAILS(waitpid(-1, NULL, WNOHANG), ECHILD);
        check(1, 0, len / 4096, "parent");
    }
    return NULL;
}

/* A child that is denied something of what a manager needs is right all the same: its parent finds out. */
static void denied(void)
{
    enum { FAILS = SECCOMP_RET_ERRNO | EPERM };
    struct denied all[] = {
        {SYS_clone3, 0, FAILS},
        {SYS_io_uring_setup, 0, FAILS},
        {SYS_eventfd2, 0, FAILS},
        {SYS_clock_nanosleep, 0, FAILS},
        {SYS_close_range, 0, FAILS},
        {SYS_ioctl, UFFDIO_API, FAILS},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        pthread_t thread;
        /* What went to the kernel stays there. */
        SYS(munmap(base, len));
        base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(base != MAP_FAILED, "mmap");
        fill(1, 0, len / 4096);
        CHECK(pthread_create(&thread, NULL, fork_denied, &all[i]) == 0, "pthread_create");
        CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    }
}

/* One call, whose caller is ended. */
static void filtered(void)
{
    struct denied denied = {SYS_ioctl, UFFDIO_API, SECCOMP_RET_KILL_PROCESS};
    fill(1, 0, len / 4096);
    fork_denied(&denied);
}

/* A process that is another user's from some moment on may not open its swap file any more. */
static void other_user(bool then_fails)
{
    fill(1, 0, len / 4096);
    SYS(setresgid(65534, 65534, 65534));
    SYS(setresuid(65534, 65534, 65534));
    for (int i = 0; i < 2; i++) {
        if (then_fails) {
            SYS_FAILS(fork(), ENOMEM);
            continue;
        }
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            check(1, 0, len / 4096, "child");
            exit(42);
        }
        succeeded(child, "child");
    }
    check(1, 0, len / 4096, "parent");
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = SYS(open(path, O_WRONLY));
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s: %s: %s", path, text, strerror(errno));
    SYS(close(fd));
}

static long read_number(const char *dir, const char *name)
{
    char path[PATH_MAX], text[32] = "";
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = SYS(open(path, O_RDONLY));
    CHECK(read(fd, text, sizeof text - 1) > 0, "%s: %s", path, strerror(errno));
    SYS(close(fd));
    return atol(text);
}

/* The group of processes at GROUP (pids) has room for one more: a child can start no threads. fork fails
 * then, until there is room, or the child is by the kernel. */
static void few_threads(const char *group, bool then_fails)
{
    char text[32];
    CHECK(group != NULL, "GROUP is not in the environment");
    fill(1, 0, len / 4096);
    snprintf(text, sizeof text, "%d", getpid());
    write_text(group, "cgroup.procs", text);
    /* For the child, and for what the library starts late; a manager needs more. */
    snprintf(text, sizeof text, "%ld", read_number(group, "pids.current") + 4);
    write_text(group, "pids.max", text);
    for (int i = 0; i < 2; i++) {
        if (then_fails) {
            SYS_FAILS(fork(), EAGAIN);
            continue;
        }
        make_child("a child without threads");
    }
    if (then_fails) {
        /* What has failed for want of room works as soon as there is some. */
        write_text(group, "pids.max", "max");
        make_child("a child with room");
    }
    check(1, 0, len / 4096, "parent");
}

int main(int argc, char **argv)
{
    const char *mode = begin(argc, argv);
    if (strcmp(mode, "refused") == 0)
        refused();
    else if (strcmp(mode, "late") == 0 || strcmp(mode, "late-refused") == 0)
        late(mode[4] != 0);
    else if (strcmp(mode, "denied") == 0)
        denied();
    else if (strcmp(mode, "filtered") == 0)
        filtered();
    else if (strcmp(mode, "other-user") == 0 || strcmp(mode, "other-user-refused") == 0)
        other_user(mode[10] != 0);
    else if (strcmp(mode, "few") == 0 || strcmp(mode, "few-refused") == 0)
        few_threads(getenv("GROUP"), mode[3] != 0);
    else
        FAIL("no such mode");
    finish();
    return 0;
}
