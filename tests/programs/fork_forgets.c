/* What MADV_DONTNEED has forgotten reads as before the stores, also while another thread forks and all memory
 * goes to the kernel. Prints ok.
 *
 *   fork_forgets SECONDS [FILE]   private memory, or private pages of a file */
#include "common.h"

#define BYTES (2 * MIB)

static atomic_bool stop;

static void *fork_often(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0)
            _exit(0);
        SYS(waitpid(child, NULL, 0));
        usleep(5000);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2, "usage: fork_forgets SECONDS [FILE]");
    int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (argc > 2) {
        fd = (int)SYS(open(argv[2], O_RDWR | O_CREAT, 0600));
        SYS(ftruncate(fd, BYTES));
        flags = MAP_PRIVATE;
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fork_often, NULL) == 0, "pthread_create");
    time_t until = time(NULL) + atoi(argv[1]);
    for (size_t round = 0; time(NULL) < until; round++) {
        volatile uint8_t *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
        CHECK(map != MAP_FAILED, "mmap: %s", strerror(errno));
        for (size_t at = 0; at < BYTES; at += BYTES / 4)
            map[at] = 1;
        SYS(madvise((void *)map, BYTES, MADV_DONTNEED));
        for (size_t at = 0; at < BYTES; at += BYTES / 4)
            CHECK(map[at] == 0, "byte %zu is %d in round %zu", at, map[at], round);
        SYS(munmap((void *)map, BYTES));
    }
    atomic_store(&stop, true);
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    printf("ok\n");
    return 0;
}
