/* Children that are made past fork and its hooks.
 *   cloned MODE MIB [RESIDENT_MIB]    as in forked.h. MODE:
 *     cloned     children of clone and _Fork */
#include "forked.h"
#include <sched.h>

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

int main(int argc, char **argv)
{
    const char *mode = begin(argc, argv);
    if (strcmp(mode, "cloned") == 0)
        cloning();
    else
        FAIL("no such mode");
    finish();
    return 0;
}
