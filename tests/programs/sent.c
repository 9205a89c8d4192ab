/* Counts signals that others send, while files are mapped for reading and for writing. Each signal ends the
 * program if it has no handler, so that one that is lost, or kept by somebody else, is seen.
 *   sent FILE SEED SIGNAL COUNT    FILE is the pattern of SEED; writes a line for each signal
 * The one who sends waits for the line before it sends the next. */
#include "common.h"

static volatile sig_atomic_t count;

static void on_signal(int number UNUSED)
{
    char line[16];
    int n = snprintf(line, sizeof line, "got %d\n", (int)++count);
    SYS(write(1, line, (size_t)n));
}

int main(int argc, char **argv)
{
    CHECK(argc == 5, "usage: sent FILE SEED SIGNAL COUNT");
    const uint64_t seed = strtoull(argv[2], NULL, 10);
    const int number = atoi(argv[3]), wanted = atoi(argv[4]);
    const size_t len = MIB;
    int written = make_file(argv[1], ".w", seed, len), read_only;
    char name[4096];
    SYS(close(make_file(argv[1], ".r", seed, len)));
    snprintf(name, sizeof name, "%s.r", argv[1]);
    read_only = (int)SYS(open(name, O_RDONLY));
    volatile uint8_t *stores = map_file(written, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    volatile uint8_t *loads = map_file(read_only, len, PROT_READ, MAP_SHARED, 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    SYS(sigaction(number, &action, NULL));
    SYS(write(1, "ready\n", 6));
    for (size_t at = 0; count < wanted; at = (at + PAGE) % len) {
        CHECK(loads[at] == pattern_byte(seed, at), "byte %zu differs", at);
        stores[at] ^= 1;
    }
    return 0;
}
