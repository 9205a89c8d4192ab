/* Stores to a shared mapping, never synced, and then one of the ways in which a process ends.
 *   ends FILE SEED MODE     FILE is made longer than 4 MiB by the caller; afterwards it must be the pattern
 *                           of SEED
 *   ends FILE SEED confirmed LAST    checks what `msyncs` had confirmed with number LAST */
#include "common.h"

static int fd;
static uint8_t *base;
static size_t len;
static uint64_t seed;

static void *store_late(void *argument)
{
    (void)argument;
    sleep_ms(300);
    pattern_fill(seed, 0, base, len);
    return NULL;
}

static void *wait_for_ever(void *argument)
{
    for (;;)
        pause();
    return argument;
}

static void say_ready(void)
{
    printf("ready\n");
    fflush(stdout);
}

/* Number n stores its mark all over page n modulo the pages of the first half, syncs it, and says so. The
 * second half gets stores that nobody waits for. */
static void msyncs(void)
{
    size_t pages = len / 2 / PAGE;
    for (uint64_t number = 1;; number++) {
        uint64_t *page = (uint64_t *)(base + number % pages * PAGE);
        for (size_t i = 0; i < PAGE / 8; i++)
            page[i] = mix(seed + number);
        base[len / 2 + mix(number) % (len / 2)] = (uint8_t)number;
        SYS(msync(page, PAGE, MS_SYNC));
        char line[32];
        int n = snprintf(line, sizeof line, "%llu\n", (unsigned long long)number);
        CHECK(write(1, line, (size_t)n) == n, "write: %s", strerror(errno));
    }
}

/* Every page has the mark that was confirmed for it last, or a later one. */
static void confirmed(uint64_t last)
{
    size_t pages = len / 2 / PAGE;
    uint64_t words[4096 / 8];
    for (uint64_t number = last > pages ? last - pages + 1 : 1; number <= last; number++) {
        pread_all(fd, words, PAGE, number % pages * PAGE);
        for (size_t i = 0; i < PAGE / 8; i++)
            CHECK(words[i] == mix(seed + number) || words[i] == mix(seed + number + pages),
                  "msync had confirmed number %llu, but word %zu of its page is something else",
                  (unsigned long long)number, i);
    }
}

static void end(const char *mode)
{
    pthread_t id;
    if (!strcmp(mode, "exit"))
        exit(3);
    if (!strcmp(mode, "_exit"))
        _exit(4);
    if (!strcmp(mode, "_Exit"))
        _Exit(5);
    if (!strcmp(mode, "quick_exit"))
        quick_exit(6);
    if (!strcmp(mode, "abort"))
        abort();
    if (!strcmp(mode, "raise"))
        raise(SIGTERM);
    if (!strcmp(mode, "segv")) {
        volatile int *volatile nowhere = NULL;
        *nowhere = 1;
    }
    if (!strcmp(mode, "trap"))
        __builtin_trap();
    if (!strcmp(mode, "alarm")) {
        alarm(1);
        pause();
    }
    if (!strcmp(mode, "pipe")) {
        int pipes[2];
        SYS(pipe(pipes));
        SYS(close(pipes[0]));
        SYS(write(pipes[1], "x", 1));
    }
    if (!strcmp(mode, "thread-exit")) { /* another thread ends the process */
        SPAWN(&id, wait_for_ever, NULL);
        SPAWN(&id, (void *(*)(void *))(void *)_exit, (void *)7);
        for (;;)
            pause();
    }
    if (!strcmp(mode, "main-leaves")) {
        SPAWN(&id, store_late, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(mode, "exec")) {
        execl("/bin/sh", "sh", "-c", "exit 8", NULL);
        FAIL("exec: %s", strerror(errno));
    }
    if (!strcmp(mode, "wait") || !strcmp(mode, "wait-threads")) { /* for a signal from outside */
        for (int i = 0; !strcmp(mode, "wait-threads") && i < 4; i++)
            SPAWN(&id, wait_for_ever, NULL);
        say_ready();
        for (;;)
            pause();
    }
    if (!strcmp(mode, "handler")) { /* a handler of the program's own, then the default action again */
        signal(SIGTERM, (void (*)(int))(void *)say_ready);
        raise(SIGTERM);
        signal(SIGTERM, SIG_DFL);
        raise(SIGTERM);
    }
    CHECK(!strcmp(mode, "return"), "no mode %s", mode);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 4, "usage: ends FILE SEED MODE");
    seed = strtoull(argv[2], NULL, 0);
    fd = (int)SYS(open(argv[1], O_RDWR));
    len = file_size(fd);
    if (!strcmp(argv[3], "confirmed")) {
        confirmed(strtoull(argv[4], NULL, 0));
        return 0;
    }
    base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    SYS(close(fd));
    if (!strcmp(argv[3], "msyncs"))
        msyncs();
    pattern_fill(seed, 0, base, len);
    end(argv[3]);
    return 2;
}
