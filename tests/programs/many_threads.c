/* One thread per file, each scanning its own file several times: more waiting faults than the budget has room
 * for readahead.
 *   many_threads PREFIX COUNT PASSES    reads PREFIX0, PREFIX1, ..., whose seeds are 0, 1, ... */
#include "common.h"

static const char *prefix;
static unsigned passes;

static void *scan(void *argument)
{
    uint64_t seed = (uintptr_t)argument;
    char path[4096];
    snprintf(path, sizeof path, "%s%llu", prefix, (unsigned long long)seed);
    int fd = (int)SYS(open(path, O_RDONLY));
    size_t len = file_size(fd);
    const uint8_t *base = map_file(fd, len, PROT_READ, MAP_SHARED, 0);
    for (unsigned pass = 0; pass < passes; pass++)
        pattern_check(seed, 0, base, len, path);
    SYS(munmap((void *)base, len));
    SYS(close(fd));
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: many_threads PREFIX COUNT PASSES");
    prefix = argv[1];
    unsigned count = (unsigned)atoi(argv[2]);
    passes = (unsigned)atoi(argv[3]);
    pthread_t *ids = calloc(count, sizeof *ids);
    for (unsigned i = 0; i < count; i++)
        SPAWN(&ids[i], scan, (void *)(uintptr_t)i);
    for (unsigned i = 0; i < count; i++)
        pthread_join(ids[i], NULL);
    printf("%u threads, %u passes\n", count, passes);
    return 0;
}
