/* Two processes that use one file, and tell each other by pipes what they have done: each must see at once
 * what the other did before, as if one kernel had all of it.
 *   sharing FILE SEED plain|same    FILE is the pattern of SEED. The other process is this program, run
 *                                   plainly or in the same way as this one */
#include "common.h"
#include <spawn.h>

extern char **environ;

#define ROUNDS 6
#define BYTES (4 * MIB)

static const char *path;
static int from_other, to_other;

/* What the one asks of the other. */
struct order {
    enum { READ, MAP, WRITE, STORE, CUT, GROW, LET_GO, END } what;
    uint64_t at, value;
};

static void tell(const void *bytes, size_t len)
{
    CHECK(SYS(write(to_other, bytes, len)) == (long)len, "a short write to a pipe");
}

static void hear(void *bytes, size_t len)
{
    CHECK(SYS(read(from_other, bytes, len)) == (long)len, "the other process has ended");
}

/* ---- the other process: it does as it is told, and says what it saw ---- */

static int other_main(void)
{
    int fd = -1;
    volatile uint64_t *own = NULL;
    for (;;) {
        struct order order;
        uint64_t seen = 0;
        hear(&order, sizeof order);
        if (fd < 0 && order.what != END && order.what != LET_GO)
            fd = (int)SYS(open(path, O_RDWR));
        switch (order.what) {
        case READ:
            CHECK(SYS(pread(fd, &seen, 8, (off_t)order.at)) == 8, "pread");
            break;
        case MAP:
        case STORE:
            if (!own)
                own = (volatile uint64_t *)map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
            if (order.what == STORE)
                own[order.at / 8] = order.value;
            seen = own[order.at / 8];
            break;
        case WRITE:
            CHECK(SYS(pwrite(fd, &order.value, 8, (off_t)order.at)) == 8, "pwrite");
            break;
        case CUT:
        case GROW:
            SYS(ftruncate(fd, (off_t)order.at));
            break;
        case LET_GO:
        case END:
            if (own)
                SYS(munmap((void *)own, BYTES));
            if (fd >= 0)
                SYS(close(fd));
            own = NULL;
            fd = -1;
            break;
        }
        tell(&seen, sizeof seen);
        if (order.what == END)
            return 42;
    }
}

static uint64_t ask(int what, uint64_t at, uint64_t value)
{
    struct order order = {what, at, value};
    uint64_t seen;
    tell(&order, sizeof order);
    hear(&seen, sizeof seen);
    return seen;
}

static pid_t start_other(const char *self, const char *seed, bool plain)
{
    int there[2], back[2];
    SYS(pipe(there));
    SYS(pipe(back));
    char *list[64];
    size_t n = 0;
    for (char **entry = environ; *entry && n < 63; entry++)
        if (!plain || strncmp(*entry, "LD_PRELOAD=", 11))
            list[n++] = *entry;
    list[n] = NULL;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, there[0], 3);
    posix_spawn_file_actions_adddup2(&actions, back[1], 4);
    char *args[] = {(char *)self, (char *)path, (char *)seed, "other", NULL};
    pid_t child;
    int error = posix_spawn(&child, self, &actions, NULL, args, list);
    CHECK(error == 0, "posix_spawn: %s", strerror(error));
    posix_spawn_file_actions_destroy(&actions);
    SYS(close(there[0]));
    SYS(close(back[1]));
    to_other = there[1];
    from_other = back[0];
    return child;
}

/* ---- this process ---- */

/* It has the file mapped for storing before the other one opens it, and again after that one has let it
 * go. */
static void both_store(void)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        int fd = (int)SYS(open(path, O_RDWR | O_CLOEXEC));
        volatile uint64_t *map =
            (volatile uint64_t *)map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        uint64_t at = (round * 37 + 5) * PAGE, value = mix(round);
        map[at / 8] = value;
        uint64_t seen = ask(round % 2 ? MAP : READ, at, 0);
        CHECK(seen == value, "round %u: the other reads %#lx, stored was %#lx", round, seen, value);
        ask(WRITE, at + 8, ~value);
        CHECK(map[at / 8 + 1] == ~value, "round %u: what the other wrote is not seen", round);
        ask(STORE, at + 2 * PAGE, value + 1);
        CHECK(map[at / 8 + 2 * PAGE / 8] == value + 1, "round %u: what the other stored is not seen", round);
        map[at / 8 + 3] = value + 2;
        CHECK(ask(MAP, at + 24, 0) == value + 2, "round %u: a later store is not seen", round);
        SYS(munmap((void *)map, BYTES));
        SYS(close(fd));
        ask(LET_GO, 0, 0);
    }
}

/* It only reads; the other writes. */
static void other_writes(void)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        int fd = (int)SYS(open(path, O_RDONLY | O_CLOEXEC));
        const volatile uint64_t *map =
            (const volatile uint64_t *)map_file(fd, BYTES, PROT_READ, MAP_SHARED, 0);
        uint64_t at = (round * 53 + 400) * PAGE, value = mix(round + 100), before = map[at / 8];
        CHECK(ask(READ, at, 0) == before, "round %u: both read the same", round);
        ask(round % 2 ? STORE : WRITE, at, value);
        CHECK(map[at / 8] == value, "round %u: what the other wrote is not seen", round);
        SYS(close(fd));
        ask(WRITE, at, before);
        CHECK(map[at / 8] == before, "round %u: a later write is not seen", round);
        SYS(munmap((void *)map, BYTES));
        ask(LET_GO, 0, 0);
    }
}

/* The other one cuts the file and makes it longer again: what was stored behind the cut is zero. */
static void other_cuts(void)
{
    int fd = (int)SYS(open(path, O_RDWR | O_CLOEXEC));
    volatile uint64_t *map = (volatile uint64_t *)map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    uint64_t at = BYTES - 8 * PAGE, kept = map[at / 8 - 1];
    for (uint64_t page = at; page < BYTES; page += PAGE)
        map[page / 8] = 7;
    ask(CUT, at, 0);
    ask(GROW, BYTES, 0);
    for (uint64_t page = at; page < BYTES; page += PAGE)
        CHECK(map[page / 8] == 0, "what was stored behind the cut is there still");
    CHECK(map[at / 8 - 1] == kept, "what was before the cut has changed");
    map[at / 8] = 9;
    CHECK(ask(READ, at, 0) == 9, "a store after the cut is not seen");
    SYS(munmap((void *)map, BYTES));
    SYS(close(fd));
    ask(LET_GO, 0, 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: sharing FILE SEED plain|same");
    path = argv[1];
    if (!strcmp(argv[3], "other")) {
        from_other = 3;
        to_other = 4;
        return other_main();
    }
    pid_t other = start_other(argv[0], argv[2], !strcmp(argv[3], "plain"));
    PART(both_store);
    PART(other_writes);
    PART(other_cuts);
    ask(END, 0, 0);
    int status;
    SYS(waitpid(other, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "the other process: wait status %#x", status);
    return 0;
}
