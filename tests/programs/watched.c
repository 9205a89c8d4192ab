/* More mapped files than the process may have descriptors for: whoever opens one of them meanwhile gets it,
 * with what was stored.
 *   watched PREFIX           makes files PREFIX.N */
#include "common.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>

extern char **environ;

enum { FILES = 600, THREADS = 120, BYTES = 4 * PAGE };

static const char *prefix;

static const char *name_of(int i, char name[4096])
{
    snprintf(name, 4096, "%s.%d", prefix, i);
    return name;
}

/* ---- the other process: it opens all files, by many threads, and answers in each ---- */

static pthread_barrier_t barrier;

static void *open_some(void *first)
{
    char name[4096];
    uint8_t byte;
    pthread_barrier_wait(&barrier);
    for (int i = (int)(intptr_t)first; i < FILES; i += THREADS) {
        int fd = (int)SYS(open(name_of(i, name), O_RDWR));
        pread_all(fd, &byte, 1, (uint64_t)i);
        CHECK(byte == (uint8_t)(i + 1), "file %d has %#x", i, byte);
        byte = (uint8_t)~byte;
        pwrite_all(fd, &byte, 1, (uint64_t)i + PAGE);
        SYS(close(fd));
    }
    return NULL;
}

static int other_main(void)
{
    pthread_t threads[THREADS];
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0, "pthread_barrier_init");
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, open_some, (void *)(intptr_t)i) == 0, "pthread_create");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 42;
}

/* ---- this process ---- */

static pid_t start_other(char *self)
{
    char *list[256];
    size_t n = 0;
    for (char **entry = environ; *entry && n < 255; entry++)
        if (strncmp(*entry, "LD_PRELOAD=", 11))
            list[n++] = *entry;
    list[n] = NULL;
    char *args[] = {self, (char *)prefix, "other", NULL};
    pid_t child;
    int error = posix_spawn(&child, self, NULL, NULL, args, list);
    CHECK(error == 0, "posix_spawn: %s", strerror(error));
    return child;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 || argc == 3, "usage: watched PREFIX");
    prefix = argv[1];
    if (argc == 3)
        return other_main();
    static volatile uint8_t *bases[FILES];
    char name[4096];
    struct rlimit limit = {.rlim_cur = 1024, .rlim_max = 1024};
    SYS(setrlimit(RLIMIT_NOFILE, &limit));
    for (int i = 0; i < FILES; i++) {
        int fd = (int)SYS(open(name_of(i, name), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
        SYS(ftruncate(fd, BYTES));
        bases[i] = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        SYS(close(fd));
        bases[i][i] = (uint8_t)(i + 1);
    }
    int status;
    SYS(waitpid(start_other(argv[0]), &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "the other process: wait status %#x", status);
    for (int i = 0; i < FILES; i++) {
        uint8_t answer = bases[i][i + PAGE];
        CHECK(answer == (uint8_t)~(i + 1), "file %d: the answer is %#x", i, answer);
        SYS(munmap((void *)bases[i], BYTES));
        SYS(unlink(name_of(i, name)));
    }
    printf("ok\n");
    return 0;
}
