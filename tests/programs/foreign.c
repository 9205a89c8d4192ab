/* Another process changes the file.
 *   foreign FILE SEED    FILE is the pattern of SEED; after SIGUSR1 it must be that of SEED + 1, of any size */
#include "common.h"

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: foreign FILE SEED");
    uint64_t seed = strtoull(argv[2], NULL, 0);
    sigset_t signals;
    int got;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    SYS(sigprocmask(SIG_BLOCK, &signals, NULL));

    int fd = (int)SYS(open(argv[1], O_RDONLY));
    size_t len = file_size(fd);
    const uint8_t *old = map_file(fd, len, PROT_READ, MAP_SHARED, 0);
    pattern_check(seed, 0, old, len, "before");
    printf("ready\n");
    fflush(stdout);
    CHECK(sigwait(&signals, &got) == 0, "sigwait");

    /* Who opens and maps the file after the change sees it, and so does who has mapped it before. */
    int again = (int)SYS(open(argv[1], O_RDONLY));
    size_t new_len = file_size(again);
    const uint8_t *new = map_file(again, new_len, PROT_READ, MAP_SHARED, 0);
    pattern_check(seed + 1, 0, new, new_len, "a new mapping");
    pattern_check(seed + 1, 0, old, len < new_len ? len : new_len, "the old mapping");
    return 0;
}
