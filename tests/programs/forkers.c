/* Threads that fork at the same time, some of them where a child cannot have a copy of managed memory.
 *   forkers ROUNDS
 *
 * libc has locks of its own around a fork. Whoever does something before or after it in libc's hooks must
 * take them in the same order in all forks. */
#include "common.h"

#define THREADS 4
#define OWN_BYTES (256 * KIB)
#define STACK_BYTES (256 * KIB)

static int rounds;

static void *fork_once(void *argument)
{
    const uint8_t *own = argument;
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        bytes_check(own, own[0], OWN_BYTES, "child");
        _exit(42);
    }
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "the child's wait status is %#x", status);
    return NULL;
}

static uint8_t *map_private(size_t len)
{
    uint8_t *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    return at;
}

/* With a stack that may be managed: the child's could not be. */
static void fork_on_mapped_stack(void *own)
{
    pthread_attr_t attributes;
    pthread_t thread;
    uint8_t *stack = map_private(STACK_BYTES);
    CHECK(pthread_attr_init(&attributes) == 0, "pthread_attr_init");
    CHECK(pthread_attr_setstack(&attributes, stack, STACK_BYTES) == 0, "pthread_attr_setstack");
    CHECK(pthread_create(&thread, &attributes, fork_once, own) == 0, "pthread_create");
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    pthread_attr_destroy(&attributes);
    SYS(munmap(stack, STACK_BYTES));
}

static void *work(void *argument)
{
    unsigned number = (unsigned)(uintptr_t)argument;
    for (int round = 0; round < rounds; round++) {
        uint8_t *own = map_private(OWN_BYTES);
        memset(own, (int)(number * 50 + (unsigned)round % 50 + 1), OWN_BYTES);
        if (number % 2)
            fork_on_mapped_stack(own);
        else
            fork_once(own);
        SYS(munmap(own, OWN_BYTES));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: forkers ROUNDS");
    rounds = atoi(argv[1]);
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        SPAWN(&threads[i], work, (void *)(uintptr_t)i);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    puts("ok");
    return 0;
}
