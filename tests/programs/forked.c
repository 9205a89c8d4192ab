/* Forked children that go on with the memory of their parent.
 *   forked MODE MIB [RESIDENT_MIB]    so much a process may have in memory at most, if given. MODE:
 *     both       parent and child check all pages, change them in their own ways, and check them again
 *     deep       a child forks in turn, ten deep; all check what they have
 *     exec       fork + exec, many times
 *     threads    other threads change memory all the time while one forks
 *     rights     what may only be read cannot be stored to in the child either
 *     streams    libc's streams, and small blocks, go on in the child (--heap all: they are managed)
 *     orphan     a child ends before its own child, which needs the swap file of the first
 *     killed     children end by SIGKILL with pages of their own out; the parent needs all its swap again */
#include "common.h"
#include <sys/prctl.h>

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
    else if (strcmp(mode, "rights") == 0)
        rights();
    else if (strcmp(mode, "orphan") == 0)
        orphan();
    else if (strcmp(mode, "streams") == 0)
        streams();
    else if (strcmp(mode, "killed") == 0)
        killed();
    else
        FAIL("no such mode");
    SYS(munmap(base, len));
    puts("ok");
    return 0;
}
