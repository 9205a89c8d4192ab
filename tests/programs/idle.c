/* Touches anonymous memory of 128 MiB at random for some seconds, which takes many page faults where it does
 * not fit, and says "quiet"; then waits for SIGTERM. */
#include "common.h"

int main(void)
{
    size_t pages = 128 << 8;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    uint8_t *base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED, "mmap: %s", strerror(errno));
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    uint64_t state = 1;
    do {
        state = state * 6364136223846793005u + 1442695040888963407u;
        base[(state >> 33) % pages * PAGE] += 1;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - begin.tv_sec < 3);
    printf("quiet\n");
    fflush(stdout);
    int signal;
    sigwait(&set, &signal);
    return 0;
}
