/* Reads chunks of a file, each whole and once, at places that look random.
 *   each_chunk FILE SEED CHUNK_KIB [KILL]    FILE has the pattern of SEED
 * Says how many chunks there were. With KILL it ends by SIGKILL. */
#include "common.h"

int main(int argc, char **argv)
{
    CHECK(argc == 4 || argc == 5, "usage: each_chunk FILE SEED CHUNK_KIB [KILL]");
    uint64_t seed = strtoull(argv[2], NULL, 0);
    size_t chunk = strtoull(argv[3], NULL, 0) * KIB;
    int fd = (int)SYS(open(argv[1], O_RDONLY));
    struct stat stat;
    SYS(fstat(fd, &stat));
    size_t count = (size_t)stat.st_size / chunk;
    const uint8_t *all = map_file(fd, (size_t)stat.st_size, PROT_READ, MAP_SHARED, 0);
    struct rng rng = rng_new(seed, 1);
    static size_t order[4096];
    CHECK(count <= sizeof order / sizeof *order, "too many chunks");
    for (size_t i = 0; i < count; i++) {
        size_t other = rng_below(&rng, i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    for (size_t i = 0; i < count; i++)
        pattern_check(seed, order[i] * chunk, all + order[i] * chunk, chunk, "a chunk");
    printf("%zu\n", count);
    fflush(stdout);
    if (argc == 5)
        raise(SIGKILL);
    return 0;
}
