/* Forked children that go on with the memory of their parent.
 *   forked MODE MIB [RESIDENT_MIB]    so much a process may have in memory at most, if given. MODE:
 *     both       parent and child check all pages, change them in their own ways, and check them again
 *     deep       a child forks in turn, ten deep; all check what they have
 *     exec       fork + exec, many times
 *     threads    other threads change memory all the time while one forks
 *     mapping    other threads map files all the time while one forks
 *     rights     what may only be read cannot be stored to in the child either
 *     streams    libc's streams, and small blocks, go on in the child (--heap all: they are managed)
 *     orphan     a child ends before its own child, which needs the swap file of the first
 *     killed     children end by SIGKILL with pages of their own out; the parent needs all its swap again
 *     refused    fork fails where there cannot be a copy (--fork fail)
 *     late       a fork takes longer than it may; the next one is right. late-refused: it fails
 *     denied     the child is denied system calls that a manager needs. filtered: one of them ends it
 *     other-user the process becomes another user's. other-user-refused: its forks fail
 *     few        a child can start no threads: the control group $GROUP is full. few-refused: forks fail
 *     cloned     children of clone and _Fork
 *     prefork    a server's children, several at once
 * Those from `refused` to `denied` are about Elbowroom: the kernel alone cannot do what they expect. */
#include "common.h"
#include "unseen.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <limits.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

static size_t len;
static uint8_t *base;

/* Every third page is of one word, every third compresses, and every third does not. */
static uint64_t word(uint64_t seed, size_t page, size_t nth)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + page;
    if (page % 3 == 0)
        return x;
    if (page % 3 == 1)
        return nth % 8 == 0 ? x + nth : x;
    x += nth * 0xbf58476d1ce4e5b9u;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 29;
}

static void fill(uint64_t seed, size_t from, size_t to)
{
    for (size_t page = from; page < to; page++)
        for (size_t nth = 0; nth < 512; nth++)
            ((uint64_t *)(base + page * 4096))[nth] = word(seed, page, nth);
}

static void check(uint64_t seed, size_t from, size_t to, const char *who)
{
    for (size_t page = from; page < to; page++)
        for (size_t nth = 0; nth < 512; nth++) {
            uint64_t is = ((uint64_t *)(base + page * 4096))[nth];
            CHECK(is == word(seed, page, nth), "%s: page %zu, word %zu: %#lx", who, page, nth, is);
        }
}

/* What this process has in memory; 0: as much as it likes. */
static size_t most_resident;

static void check_resident(const char *who)
{
    size_t pages, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%zu %zu", &pages, &resident) == 2, "statm");
    fclose(file);
    CHECK(most_resident == 0 || resident * 4096 <= most_resident, "%s: %zu pages", who, resident);
}

static void succeeded(pid_t child, const char *what)
{
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "%s: the wait status is %#x", what, status);
}

static void both(void)
{
    size_t pages = len / 4096;
    fill(1, 0, pages);
    for (int round = 0; round < 3; round++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            check(1, 0, pages, "child");
            fill(2, 0, pages / 2);
            check(2, 0, pages / 2, "child, first half");
            check(1, pages / 2, pages, "child, second half");
            void *own = mmap(NULL, len / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(own != MAP_FAILED, "mmap");
            memset(own, 9, len / 4);
            SYS(munmap(base + len / 2, len / 2));
            check(2, 0, pages / 2, "child, at last");
            check_resident("child");
            exit(42);
        }
        check(1, 0, pages, "parent");
        fill(3 + (uint64_t)round, pages / 4, pages / 2);
        check(3 + (uint64_t)round, pages / 4, pages / 2, "parent, second quarter");
        check(1, pages / 2, pages, "parent, second half");
        succeeded(child, "child");
        fill(1, pages / 4, pages / 2);
        check(1, 0, pages, "parent, at last");
        check_resident("parent");
    }
}

/* A tenth of the memory is of each generation so far, the rest of the first. */
static void check_generations(int depth)
{
    size_t pages = len / 4096;
    for (size_t part = 0; part < 10; part++)
        check(part <= (size_t)depth ? part : 0, part * pages / 10, (part + 1) * pages / 10, "a generation");
}

static void deep(int depth)
{
    size_t pages = len / 4096;
    fill((uint64_t)depth, (size_t)depth * pages / 10, depth == 0 ? pages : (size_t)(depth + 1) * pages / 10);
    if (depth < 9) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            deep(depth + 1);
            exit(42);
        }
        if (depth % 2 == 0)
            succeeded(child, "child");
        check_generations(depth);
        if (depth % 2 == 1)
            succeeded(child, "child");
    }
    check_generations(depth);
}

static void exec(void)
{
    size_t pages = len / 4096;
    fill(1, 0, pages);
    for (int round = 0; round < 20; round++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            execl("/bin/sh", "sh", "-c", "exit 42", NULL);
            _exit(1);
        }
        fill(1, (size_t)round * pages / 20, (size_t)(round + 1) * pages / 20);
        succeeded(child, "shell");
    }
    check(1, 0, pages, "parent");
}

static _Atomic bool stop;

static void *change(void *argument)
{
    size_t pages = len / 4096, part = (size_t)argument;
    for (uint64_t round = 2; !stop; round++) {
        fill(round, part * pages / 4, (part + 1) * pages / 4);
        check(round, part * pages / 4, (part + 1) * pages / 4, "thread");
        void *other = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(other != MAP_FAILED, "mmap");
        memset(other, 3, 1 << 20);
        SYS(munmap(other, 1 << 20));
    }
    return NULL;
}

static void threads(void)
{
    size_t pages = len / 4096;
    pthread_t thread[3];
    fill(1, 0, pages);
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, change, (void *)i) == 0, "pthread_create");
    for (int round = 0; round < 4; round++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            check(1, pages * 3 / 4, pages, "child");
            fill(5, 0, pages);
            check(5, 0, pages, "child");
            exit(42);
        }
        check(1, pages * 3 / 4, pages, "parent");
        succeeded(child, "child");
    }
    stop = true;
    for (size_t i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

static void *map_and_unmap(void *unused)
{
    int fd = (int)SYS(open("/var/tmp", O_TMPFILE | O_RDWR, 0600));
    SYS(ftruncate(fd, 4 * MIB));
    while (!stop) {
        uint8_t *at = map_file(fd, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        at[0]++;
        SYS(munmap(at, 4 * MIB));
    }
    SYS(close(fd));
    return unused;
}

static void mapping(void)
{
    size_t pages = len / 4096;
    pthread_t thread[2];
    fill(1, 0, pages);
    for (size_t i = 0; i < 2; i++)
        SPAWN(&thread[i], map_and_unmap, NULL);
    for (int round = 0; round < 12; round++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            check(1, round * pages / 12, (round + 1) * pages / 12, "child");
            exit(42);
        }
        check(1, round * pages / 12, (round + 1) * pages / 12, "parent");
        succeeded(child, "child");
    }
    stop = true;
    for (size_t i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}

/* A child's child outlives the child, and reads what is in the first one's swap file while that goes on. */
static void orphan(void)
{
    size_t pages = len / 4096;
    int go[2];
    SYS(pipe(go));
    /* Children of children that have ended become ours. */
    SYS(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    fill(1, 0, pages);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        pid_t orphan = (pid_t)SYS(fork());
        if (orphan == 0) {
            char byte;
            SYS(close(go[1]));
            CHECK(read(go[0], &byte, 1) == 1, "read");
            check(1, 0, pages, "orphan");
            fill(2, 0, pages);
            check(2, 0, pages, "orphan");
            exit(42);
        }
        exit(42);
    }
    succeeded(child, "child");
    sleep(3);
    for (uint64_t round = 3; round < 6; round++) {
        fill(round, 0, pages);
        check(round, 0, pages, "parent");
    }
    SYS((int)write(go[1], "x", 1));
    int status;
    pid_t orphan = waitpid(-1, &status, 0);
    CHECK(orphan > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 42, "orphan: %#x", status);
}

static sigjmp_buf back;

static void on_segv(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

static void rights(void)
{
    size_t pages = len / 4096;
    fill(1, 0, pages);
    SYS(mprotect(base, len / 2, PROT_READ));
    check(1, 0, pages, "parent");
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        signal(SIGSEGV, on_segv);
        for (size_t page = 0; page < pages / 2; page += 7)
            if (sigsetjmp(back, 1) == 0) {
                base[page * 4096] = 0;
                FAIL("page %zu can be stored to", page);
            }
        check(1, 0, pages, "child");
        SYS(mprotect(base, len, PROT_READ | PROT_WRITE));
        fill(2, 0, pages);
        check(2, 0, pages, "child");
        exit(42);
    }
    succeeded(child, "child");
    check(1, 0, pages, "parent");
}

static void streams(void)
{
    enum { STREAMS = 300, BLOCKS = 200000 };
    static FILE *stream[STREAMS];
    static size_t *block[BLOCKS];
    size_t pages = len / 4096;
    for (size_t i = 0; i < BLOCKS; i++) {
        block[i] = malloc(64);
        *block[i] = i;
        if (i % (BLOCKS / STREAMS) == 0 && i / (BLOCKS / STREAMS) < STREAMS) {
            stream[i / (BLOCKS / STREAMS)] = fopen("/dev/null", "w");
            CHECK(stream[i / (BLOCKS / STREAMS)] != NULL, "fopen");
        }
    }
    for (int round = 0; round < 3; round++) {
        fill(1, 0, pages);
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            for (size_t i = 0; i < STREAMS; i++)
                CHECK(fprintf(stream[i], "%zu\n", i) > 0 && fclose(stream[i]) == 0, "stream %zu", i);
            for (size_t i = 0; i < BLOCKS; i++)
                CHECK(*block[i] == i, "block %zu: %zu", i, *block[i]);
            check(1, 0, pages, "child");
            for (size_t i = 0; i < BLOCKS; i++)
                free(block[i]);
            exit(42);
        }
        succeeded(child, "child");
    }
    for (size_t i = 0; i < STREAMS; i++)
        CHECK(fprintf(stream[i], "%zu\n", i) > 0 && fclose(stream[i]) == 0, "stream %zu", i);
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(*block[i] == i, "block %zu: %zu", i, *block[i]);
        free(block[i]);
    }
}

static void killed(void)
{
    size_t pages = len / 4096;
    for (int round = 0; round < 6; round++) {
        fill((uint64_t)round, 0, pages);
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            fill(99, 0, pages);
            check(99, 0, pages, "child");
            raise(SIGKILL);
        }
        int status;
        SYS(waitpid(child, &status, 0));
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the wait status is %#x", status);
        check((uint64_t)round, 0, pages, "parent");
        sleep(2);
    }
}

static void ended_by(pid_t child, int signal, const char *what)
{
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal, "%s: the wait status is %#x", what, status);
}

static void *fork_fails_here(void *argument)
{
    CHECK(fork() == -1, "fork succeeded");
    *(int *)argument = errno;
    return NULL;
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
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        check(1, 0, pages, "child");
        exit(42);
    }
    succeeded(child, "child");
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
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            check(1, 0, pages, "child");
            exit(42);
        }
        succeeded(child, "child");
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

static void *fork_denied(void *argument)
{
    struct denied *denied = argument;
    deny(denied->call, denied->second, denied->action);
    for (int i = 0; i < 2; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            check(1, 0, len / 4096, "a child that was denied something");
            fill(2, 0, len / 4096);
            check(2, 0, len / 4096, "a child that was denied something");
            exit(42);
        }
        succeeded(child, "a child that was denied something");
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

/* The group of processes at GROUP (pids) has room for one more: a child can start no threads. */
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
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            check(1, 0, len / 4096, "a child without threads");
            fill(2, 0, len / 4096);
            check(2, 0, len / 4096, "a child without threads");
            exit(42);
        }
        succeeded(child, "a child without threads");
    }
    check(1, 0, len / 4096, "parent");
}

/* Children that fork's hooks do not see, on stacks of the program's. */
static int cloned(void *unused)
{
    (void)unused;
    check(1, 0, len / 4096, "a cloned child");
    fill(2, 0, len / 4096);
    check(2, 0, len / 4096, "a cloned child");
    return 42;
}

static void *clones(void *unused)
{
    for (int i = 0; i < 2; i++) {
        uint8_t *stack = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(stack != MAP_FAILED, "mmap");
        succeeded((pid_t)SYS(clone(cloned, stack + MIB, SIGCHLD, NULL)), "a cloned child");
        SYS(munmap(stack, MIB));
        check(1, 0, len / 4096, "parent");
        /* What is mapped now is managed again, until the next one. */
        uint8_t *other = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(other != MAP_FAILED, "mmap");
        memset(other, i, 8 * MIB);
        pid_t child = _Fork();
        if (child == 0) {
            CHECK(other[5 * MIB] == i, "a child of _Fork");
            _exit(cloned(NULL));
        }
        succeeded(child, "a child of _Fork");
        SYS(munmap(other, 8 * MIB));
    }
    return unused;
}

static void cloning(void)
{
    pthread_t thread;
    fill(1, 0, len / 4096);
    clones(NULL);
    CHECK(pthread_create(&thread, NULL, clones, NULL) == 0, "pthread_create");
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
}

/* A server whose children accept on one socket: for each request a child checks all of its memory, and
 * changes a part. So does the parent, which kills children, and makes new ones, meanwhile. */
enum { PARTS = 16, CHILDREN = 4, REQUESTS = 24 };
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static uint64_t seeds[PARTS];

static void turn(size_t nth, const char *who)
{
    size_t pages = len / 4096, part = nth % PARTS;
    for (size_t i = 0; i < PARTS; i++)
        check(seeds[i], i * pages / PARTS, (i + 1) * pages / PARTS, who);
    seeds[part] = (uint64_t)getpid() << 20 | nth;
    fill(seeds[part], part * pages / PARTS, (part + 1) * pages / PARTS);
}

static pid_t start_child(int listener)
{
    pid_t child = (pid_t)SYS(fork());
    if (child != 0)
        return child;
    for (size_t nth = 0;; nth++) {
        char request;
        int connection = (int)SYS(accept(listener, NULL, NULL));
        if (read(connection, &request, 1) == 1) {
            if (request == 'q')
                exit(42);
            turn(nth * 5 + (size_t)getpid(), "child");
            check_resident("child");
            SYS((int)write(connection, "k", 1));
        }
        SYS(close(connection));
    }
}

/* Whether it was answered: the child may have been killed. */
static bool ask(char request)
{
    char answer;
    int fd = (int)SYS(socket(AF_UNIX, SOCK_STREAM, 0));
    SYS(connect(fd, (struct sockaddr *)&address, sizeof address));
    SYS((int)write(fd, &request, 1));
    bool answered = read(fd, &answer, 1) == 1 && answer == 'k';
    SYS(close(fd));
    return answered;
}

static _Atomic int answered;

static void *client(void *argument)
{
    (void)argument;
    while (answered < REQUESTS)
        if (ask('r'))
            answered++;
    return NULL;
}

static void prefork(void)
{
    pid_t child[CHILDREN];
    pthread_t thread[CHILDREN];
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "elbowroom-forked-%d", (int)getpid());
    int listener = (int)SYS(socket(AF_UNIX, SOCK_STREAM, 0)), status;
    SYS(bind(listener, (struct sockaddr *)&address, sizeof address));
    SYS(listen(listener, 64));
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < PARTS; i++)
        seeds[i] = i;
    for (size_t i = 0; i < PARTS; i++)
        fill(i, i * (len / 4096) / PARTS, (i + 1) * (len / 4096) / PARTS);
    for (size_t i = 0; i < CHILDREN; i++)
        child[i] = start_child(listener);
    for (size_t i = 0; i < CHILDREN; i++)
        CHECK(pthread_create(&thread[i], NULL, client, NULL) == 0, "pthread_create");
    for (size_t nth = 0; answered < REQUESTS; nth++) {
        turn(nth, "parent");
        if (nth % 2 == 1 && nth / 2 < CHILDREN) {
            SYS(kill(child[nth / 2], SIGKILL));
            ended_by(child[nth / 2], SIGKILL, "child");
            child[nth / 2] = start_child(listener);
        }
    }
    for (size_t i = 0; i < CHILDREN; i++)
        CHECK(pthread_join(thread[i], NULL) == 0, "pthread_join");
    for (size_t i = 0; i < CHILDREN; i++)
        ask('q');
    for (size_t i = 0; i < CHILDREN; i++) {
        SYS(waitpid(-1, &status, 0));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "child: the wait status is %#x", status);
    }
    SYS(close(listener));
    check_resident("parent");
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 || argc == 4, "usage: forked MODE MIB [RESIDENT_MIB]");
    most_resident = argc == 4 ? strtoul(argv[3], NULL, 10) << 20 : 0;
    len = strtoul(argv[2], NULL, 10) << 20;
    base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap");
    const char *mode = argv[1];
    if (strcmp(mode, "both") == 0)
        both();
    else if (strcmp(mode, "deep") == 0)
        deep(0);
    else if (strcmp(mode, "exec") == 0)
        exec();
    else if (strcmp(mode, "threads") == 0)
        threads();
    else if (strcmp(mode, "mapping") == 0)
        mapping();
    else if (strcmp(mode, "rights") == 0)
        rights();
    else if (strcmp(mode, "orphan") == 0)
        orphan();
    else if (strcmp(mode, "streams") == 0)
        streams();
    else if (strcmp(mode, "killed") == 0)
        killed();
    else if (strcmp(mode, "refused") == 0)
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
    else if (strcmp(mode, "cloned") == 0)
        cloning();
    else if (strcmp(mode, "prefork") == 0)
        prefork();
    else
        FAIL("no such mode");
    SYS(munmap(base, len));
    puts("ok");
    return 0;
}
