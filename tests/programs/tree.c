/* A tree of processes that share a budget.
 *   tree random SEED MIB DEPTH  a tree at random: each process has up to MIB of verified memory and makes
 *                               children by fork, and by fork and exec; some are killed
 *   tree workers N MIB          N processes at a time, each of which changes MIB of memory three times, and
 *                               verifies it
 *   tree killed N MIB SECONDS   N such processes, of which one at random is killed and another one started,
 *                               again and again; the rest must be right
 *   tree waits MIB              fills MIB, says "full", and waits for a line
 *   tree quiet MIB SECONDS      as `waits`, but reads all of it again and again; says how many rounds
 *   tree orphan MIB HOW FILE    ends at once; its child, made by HOW (fork or vfork), executes `tree workers
 *                               1 MIB` with FILE as output
 *   tree together MIB           a process and its child do the same work, and end at about the same time
 *   tree apart MIB              `tree workers 1 MIB` in a pid namespace of its own, and a second after its
 *                               end */
#include "common.h"
#include <sched.h>

static const char *self;

/* The first word of a page after so many changes. */
static uint64_t value(uint64_t seed, size_t page, unsigned changes)
{
    return (seed * 0x9E3779B97F4A7C15u ^ page * 0xC2B2AE3D27D4EB4Fu) + changes;
}

static uint8_t *new_memory(size_t bytes)
{
    return (uint8_t *)SYS(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static void change(uint8_t *base, size_t pages, uint64_t seed, unsigned changes)
{
    for (size_t page = 0; page < pages; page++) {
        uint64_t *word = (uint64_t *)(base + page * PAGE);
        uint64_t before = changes == 1 ? 0 : value(seed, page, changes - 1);
        CHECK(*word == before, "page %zu has %#lx instead of %#lx", page, *word, before);
        *word = value(seed, page, changes);
        /* Half of the page has values that do not compress. */
        for (int at = 1; at < 256; at++)
            word[at] = word[at - 1] * 0x5851F42D4C957F2Du + page;
    }
}

static void verify(uint8_t *base, size_t pages, uint64_t seed, unsigned changes)
{
    for (size_t page = 0; page < pages; page++) {
        uint64_t *word = (uint64_t *)(base + page * PAGE);
        CHECK(*word == value(seed, page, changes), "page %zu has %#lx", page, *word);
        for (int at = 1; at < 256; at += 85)
            CHECK(word[at] == word[at - 1] * 0x5851F42D4C957F2Du + page, "page %zu, word %d", page, at);
    }
}

static void work(uint64_t seed, size_t bytes, unsigned rounds)
{
    size_t pages = bytes / PAGE;
    uint8_t *base = new_memory(bytes);
    for (unsigned round = 1; round <= rounds; round++)
        change(base, pages, seed, round);
    verify(base, pages, seed, rounds);
    SYS(munmap(base, bytes));
}

static void ends_well(pid_t child)
{
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child's wait status is %#x", status);
}

/* A process of the tree at random. */
static int node(uint64_t seed, size_t most, int depth)
{
    struct rng rng = rng_new(seed, depth);
    size_t pages = 256 + rng_below(&rng, most / PAGE - 255);
    uint8_t *base = new_memory(pages * PAGE);
    unsigned changes = 0;
    for (int step = 0; step < 6; step++) {
        change(base, pages, seed, ++changes);
        if (depth == 0)
            continue;
        uint64_t other = seed * 31 + step + 1;
        unsigned how = rng_below(&rng, 4);
        pid_t child = SYS(fork());
        if (child == 0) {
            if (how == 0) {
                char text[3][32];
                snprintf(text[0], 32, "%lu", other);
                snprintf(text[1], 32, "%zu", most / MIB);
                snprintf(text[2], 32, "%d", depth - 1);
                execl(self, self, "random", text[0], text[1], text[2], NULL);
                FAIL("exec: %s", strerror(errno));
            }
            /* The child's changes to inherited pages are its own. */
            verify(base, pages, seed, changes);
            change(base, pages, seed, changes + 1);
            if (how == 1)
                _exit(0);
            int result = node(other, most, depth - 1);
            verify(base, pages, seed, changes + 1);
            _exit(result);
        }
        if (how == 3) {
            usleep(rng_below(&rng, 50000));
            SYS(kill(child, SIGKILL));
            int status;
            SYS(waitpid(child, &status, 0));
        } else {
            /* The parent changes its pages while the child runs. */
            change(base, pages, seed, ++changes);
            ends_well(child);
        }
    }
    verify(base, pages, seed, changes);
    return 0;
}

static pid_t start_worker(uint64_t seed, size_t bytes)
{
    pid_t child = SYS(fork());
    if (child == 0) {
        work(seed, bytes, 3);
        _exit(0);
    }
    return child;
}

static void killed(int count, size_t bytes, int seconds)
{
    struct rng rng = rng_new(time(NULL), getpid());
    pid_t workers[64];
    uint64_t seed = 0;
    for (int at = 0; at < count; at++)
        workers[at] = start_worker(++seed, bytes);
    int kills = 0;
    for (time_t end = time(NULL) + seconds; time(NULL) < end; kills++) {
        usleep(rng_below(&rng, 40000));
        int at = rng_below(&rng, count);
        kill(workers[at], SIGKILL);
        int status;
        SYS(waitpid(workers[at], &status, 0));
        CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "a worker's wait status is %#x", status);
        workers[at] = start_worker(++seed, bytes);
    }
    for (int at = 0; at < count; at++)
        ends_well(workers[at]);
    // What processes had that have ended is free within a second.
    usleep(1200 * 1000);
    printf("%d kills\n", kills);
}

static void become_worker(const char *mib)
{
    execl(self, self, "workers", "1", mib, NULL);
    FAIL("exec: %s", strerror(errno));
}

/* A process whose parent ends before the process has executed its program. */
static void orphan(const char *mib, const char *how, const char *path)
{
    bool forks = strcmp(how, "fork") == 0;
    pid_t child = SYS(forks ? fork() : vfork());
    if (child > 0)
        return;
    int fd = SYS(open(path, O_WRONLY | O_CREAT | O_APPEND, 0644));
    SYS(dup2(fd, 1));
    SYS(dup2(fd, 2));
    if (forks)
        usleep(20000);
    become_worker(mib);
}

static void apart(const char *mib)
{
    pid_t outer = SYS(fork());
    if (outer == 0) {
        SYS(unshare(CLONE_NEWPID));
        pid_t inner = SYS(fork());
        if (inner == 0)
            become_worker(mib);
        ends_well(inner);
        _exit(0);
    }
    ends_well(outer);
    /* What processes had that have ended is free within a second. */
    usleep(1200 * 1000);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3, "usage: tree PART ...");
    self = argv[0];
    const char *part = argv[1];
    long number[4] = { 0 };
    for (int at = 2; at < argc && at < 6; at++)
        number[at - 2] = atol(argv[at]);
    if (strcmp(part, "random") == 0)
        return node(number[0], number[1] * MIB, number[2]);
    if (strcmp(part, "workers") == 0) {
        pid_t workers[64];
        for (int at = 0; at < number[0]; at++)
            workers[at] = start_worker(at + 1, number[1] * MIB);
        for (int at = 0; at < number[0]; at++)
            ends_well(workers[at]);
    } else if (strcmp(part, "orphan") == 0) {
        orphan(argv[2], argv[3], argv[4]);
    } else if (strcmp(part, "together") == 0) {
        pid_t child = SYS(fork());
        work(child == 0, number[0] * MIB, 1);
        if (child == 0)
            _exit(0);
    } else if (strcmp(part, "apart") == 0) {
        apart(argv[2]);
    } else if (strcmp(part, "killed") == 0) {
        killed(number[0], number[1] * MIB, number[2]);
    } else {
        size_t pages = number[0] * MIB / PAGE;
        uint8_t *base = new_memory(pages * PAGE);
        change(base, pages, 1, 1);
        printf("full\n");
        fflush(stdout);
        if (strcmp(part, "waits") == 0) {
            getchar();
        } else {
            CHECK(strcmp(part, "quiet") == 0, "there is no part %s", part);
            long rounds = 0;
            for (time_t end = time(NULL) + number[1]; time(NULL) < end; rounds++) {
                verify(base, pages, 1, 1);
                usleep(1000);
            }
            printf("%ld rounds\n", rounds);
        }
        verify(base, pages, 1, 1);
    }
    printf("ok\n");
    return 0;
}
