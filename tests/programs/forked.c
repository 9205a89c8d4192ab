/* Forked children that go on with the memory of their parent.
 *   forked MODE MIB [RESIDENT_MIB]    as in forked.h. MODE:
 *     both       parent and child check all pages, change them in their own ways, and check them again
 *     deep       a child forks in turn, ten deep; all check what they have
 *     exec       fork + exec, many times
 *     threads    other threads change memory all the time while one forks
 *     mapping    other threads map files all the time while one forks
 *     rights     what may only be read cannot be stored to in the child either
 *     streams    libc's streams, and small blocks, go on in the child (--heap all: they are managed)
 *     orphan     a child ends before its own child, which needs the swap file of the first
 *     killed     children end by SIGKILL with pages of their own out; the parent needs all its swap again
 *     prefork    a server's children, several at once */
#include "forked.h"
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

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

static ssize_t taken(void *cookie, const char *bytes, size_t size)
{
    (void)cookie, (void)bytes;
    return (ssize_t)size;
}

static void streams(void)
{
    enum { STREAMS = 1200, BLOCKS = 200000 };
    static FILE *stream[STREAMS];
    static size_t *block[BLOCKS];
    const cookie_io_functions_t nowhere = {.write = taken};
    size_t pages = len / 4096;
    for (size_t i = 0; i < BLOCKS; i++) {
        block[i] = malloc(64);
        *block[i] = i;
        if (i % (BLOCKS / STREAMS) == 0 && i / (BLOCKS / STREAMS) < STREAMS) {
            size_t n = i / (BLOCKS / STREAMS);
            /* Descriptors are few. */
            stream[n] = n % 4 == 0 ? fopen("/dev/null", "w") : fopencookie(NULL, "w", nowhere);
            CHECK(stream[n] != NULL, "stream %zu", n);
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
    /* What a child leaves behind would fill the swap file in the third. */
    for (int round = 0; round < 3; round++) {
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
    const char *mode = begin(argc, argv);
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
    else if (strcmp(mode, "prefork") == 0)
        prefork();
    else
        FAIL("no such mode");
    finish();
    return 0;
}
