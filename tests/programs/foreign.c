/* Another process changes the file.
 *   foreign FILE SEED MODE    FILE is the pattern of SEED; after SIGUSR1 it is that of SEED + 1, and not
 *                             shorter
 *     anew    the change must be seen at once by who opens and maps the file after it
 *     old     it must be seen soon by who has mapped the file before: within a minute, however busy the
 *             machine is */
#include "common.h"

/* Whether all of a mapping is the pattern of `seed`. */
static bool shows(uint64_t seed, const uint8_t *base, size_t len)
{
    static uint8_t expected[4096];
    for (size_t at = 0; at < len; at += sizeof expected) {
        size_t n = len - at < sizeof expected ? len - at : sizeof expected;
        pattern_fill(seed, at, expected, n);
        if (memcmp(base + at, expected, n))
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: foreign FILE SEED MODE");
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

    if (!strcmp(argv[3], "old")) {
        for (double end = now_seconds() + 60; now_seconds() < end && !shows(seed + 1, old, len);)
            sleep_ms(50);
        pattern_check(seed + 1, 0, old, len, "the old mapping");
        return 0;
    }
    int again = (int)SYS(open(argv[1], O_RDONLY));
    size_t new_len = file_size(again);
    const uint8_t *new = map_file(again, new_len, PROT_READ, MAP_SHARED, 0);
    pattern_check(seed + 1, 0, new, new_len, "a new mapping");
    return 0;
}
