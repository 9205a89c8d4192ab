/* A file that one process maps again and again, and that another one has from some moment between two
 * mappings on, or had before the first. What either does is seen by the other at once.
 *   between FILE          FILE is made anew
 *   between FILE other    the other process, which does as standard input says; descriptor 5 is the file, if
 *                         it has inherited it */
#include "common.h"
#include "unseen.h"
#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;

enum { ROUNDS = 15, BYTES = 1024 * 1024, INHERITED = 5 };

struct order {
    enum { OPEN, CLOSE, READ, WRITE, END } what;
    uint64_t value;
};

static const char *path;

/* ---- the other process: calls that nobody sees, since it may be a copy of this one ---- */

static void obey(int from, int to, int fd)
{
    for (;;) {
        struct order order;
        uint64_t seen = 0;
        CHECK(UNSEEN(SYS_read, from, &order, sizeof order) == sizeof order, "no order");
        if (order.what == OPEN)
            CHECK((fd = (int)UNSEEN(SYS_openat, AT_FDCWD, path, O_RDWR)) >= 0, "open");
        else if (order.what == CLOSE)
            CHECK(UNSEEN(SYS_close, fd) == 0, "close");
        else if (order.what == READ)
            CHECK(UNSEEN(SYS_pread64, fd, &seen, sizeof seen, 0L) == sizeof seen, "pread");
        else if (order.what == WRITE)
            CHECK(UNSEEN(SYS_pwrite64, fd, &order.value, sizeof order.value, 0L) == sizeof seen, "pwrite");
        CHECK(UNSEEN(SYS_write, to, &seen, sizeof seen) == sizeof seen, "no answer");
        if (order.what == END)
            UNSEEN(SYS_exit_group, 0);
    }
}

/* ---- this process ---- */

struct other {
    pid_t pid;
    int to, from;
};

static uint64_t ask(const struct other *other, int what, uint64_t value)
{
    struct order order = {what, value};
    uint64_t seen;
    CHECK(SYS(write(other->to, &order, sizeof order)) == sizeof order, "a short write to a pipe");
    CHECK(SYS(read(other->from, &seen, sizeof seen)) == sizeof seen, "the other process has ended");
    return seen;
}

static struct other start(const char *self, int inherited)
{
    int there[2], back[2];
    SYS(pipe2(there, O_CLOEXEC));
    SYS(pipe2(back, O_CLOEXEC));
    char *list[256];
    size_t n = 0;
    for (char **entry = environ; *entry && n < 255; entry++)
        if (strncmp(*entry, "LD_PRELOAD=", 11))
            list[n++] = *entry;
    list[n] = NULL;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, there[0], 0);
    posix_spawn_file_actions_adddup2(&actions, back[1], 1);
    if (inherited >= 0)
        posix_spawn_file_actions_adddup2(&actions, inherited, INHERITED);
    char *args[] = {(char *)self, (char *)path, "other", NULL};
    struct other other = {.to = there[1], .from = back[0]};
    int error = posix_spawn(&other.pid, self, &actions, NULL, args, list);
    CHECK(error == 0, "posix_spawn: %s", strerror(error));
    posix_spawn_file_actions_destroy(&actions);
    SYS(close(there[0]));
    SYS(close(back[1]));
    return other;
}

/* A child that no function of libc's has made. */
static struct other start_raw(int fd)
{
    int there[2], back[2];
    SYS(pipe2(there, O_CLOEXEC));
    SYS(pipe2(back, O_CLOEXEC));
    struct other other = {.to = there[1], .from = back[0]};
    other.pid = (pid_t)SYS(UNSEEN(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL));
    if (other.pid == 0)
        obey(there[0], back[1], fd);
    SYS(close(there[0]));
    SYS(close(back[1]));
    return other;
}

static void end(struct other other)
{
    int status;
    ask(&other, END, 0);
    SYS(waitpid(other.pid, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process: wait status %#x", status);
    SYS(close(other.to));
    SYS(close(other.from));
}

static volatile uint64_t *map(int fd)
{
    return (volatile uint64_t *)map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
}

/* Maps, reads what was stored last, stores and unmaps. */
static void alone(int fd, uint64_t last, uint64_t value)
{
    volatile uint64_t *at = map(fd);
    CHECK(*at == last, "%#lx was stored last, not %#lx", (long)last, (long)*at);
    *at = value;
    SYS(munmap((void *)at, BYTES));
}

static void together(int fd, const struct other *other, uint64_t last, uint64_t value)
{
    volatile uint64_t *at = map(fd);
    CHECK(*at == last, "%#lx was stored last, not %#lx", (long)last, (long)*at);
    *at = value;
    CHECK(ask(other, READ, 0) == value, "a store is not seen");
    ask(other, WRITE, value + 1);
    CHECK(*at == value + 1, "what the other wrote is not seen");
    SYS(munmap((void *)at, BYTES));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 || argc == 3, "usage: between FILE");
    path = argv[1];
    if (argc == 3)
        obey(0, 1, INHERITED);
    int fd = (int)SYS(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    SYS(ftruncate(fd, BYTES));
    uint64_t last = 0;
    struct other other = start(argv[0], -1);
    for (int round = 0; round < ROUNDS; round++, last += 10) {
        alone(fd, last, last + 2);
        alone(fd, last + 2, last + 4);
        ask(&other, OPEN, 0);
        if (round % 3 == 0)
            ask(&other, WRITE, last + 4);
        together(fd, &other, last + 4, last + 6);
        ask(&other, CLOSE, 0);
        alone(fd, last + 7, last + 10);
    }
    /* It has written, and let the file go, before the next mapping. */
    for (int round = 0; round < ROUNDS; round++, last += 10) {
        alone(fd, last, last + 2);
        ask(&other, OPEN, 0);
        ask(&other, WRITE, last + 10);
        ask(&other, CLOSE, 0);
    }
    /* It has the file before the first mapping. */
    SYS(close(fd));
    ask(&other, OPEN, 0);
    fd = (int)SYS(open(path, O_RDWR | O_CLOEXEC));
    together(fd, &other, last, last + 1);
    end(other);
    alone(fd, last + 2, last + 10);
    last += 10;
    for (int round = 0; round < 2 * ROUNDS; round++, last += 10) {
        alone(fd, last, last + 2);
        other = round % 2 ? start_raw(fd) : start(argv[0], fd);
        together(fd, &other, last + 2, last + 4);
        end(other);
        alone(fd, last + 5, last + 10);
    }
    printf("ok\n");
    return 0;
}
