/* Reads all pages of a file through a mapping, again and again, until SIGTERM, or so many times.
 *   rereads FILE MIB [PASSES]  makes the file, maps it, closes it, and says "ready" */
#include "common.h"

static volatile sig_atomic_t ends;

static void end(int signal)
{
    (void)signal;
    ends = 1;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3 || argc == 4, "usage: rereads FILE MIB [PASSES]");
    long passes = argc == 4 ? atol(argv[3]) : -1;
    size_t bytes = (size_t)atol(argv[2]) * MIB;
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    int fd = SYS(open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644));
    SYS(ftruncate(fd, bytes));
    for (size_t at = 0; at < bytes; at += PAGE)
        CHECK(pwrite(fd, &at, sizeof at, at) == (ssize_t)sizeof at, "write: %s", strerror(errno));
    SYS(fsync(fd));
    SYS(close(fd));
    fd = SYS(open(argv[1], O_RDONLY));
    const uint8_t *base = (const uint8_t *)SYS(mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0));
    SYS(close(fd));
    printf("ready\n");
    fflush(stdout);
    for (; !ends && passes != 0; passes--)
        for (size_t at = 0; at < bytes && !ends; at += PAGE) {
            size_t has;
            memcpy(&has, base + at, sizeof has);
            CHECK(has == at, "page %zu has %zu", at / PAGE, has);
        }
    printf("whole\n");
    return 0;
}
