/* One file, mapped and unmapped again and again by one process.
 *   remaps private FILE ROUNDS SEED   private mappings of which a page is stored to
 *   remaps mixed FILE ROUNDS SEED     random reads, writes, cuts, growth, and shared mappings that are read
 *                                     or stored to, each compared with a copy in memory
 * Prints how many nanoseconds a round took. FILE is made anew. */
#include "common.h"

enum { PRIVATE_BYTES = 3 * 1024 * 1024, MIXED_BYTES = 256 * 1024, PIECE_BYTES = 64 * 1024 };

static struct rng rng;
static int fd;

static uint64_t now_ns(void)
{
    struct timespec now;
    SYS(clock_gettime(CLOCK_MONOTONIC, &now));
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void private_rounds(long rounds)
{
    SYS(ftruncate(fd, PRIVATE_BYTES));
    for (long i = 0; i < rounds; i++) {
        volatile uint8_t *map = map_file(fd, PRIVATE_BYTES, PROT_READ, MAP_PRIVATE, 0);
        SYS(mprotect((void *)map, PRIVATE_BYTES, PROT_READ | PROT_WRITE));
        CHECK(map[PAGE] == 0, "round %ld: a store to a private mapping was seen by the next one", i);
        map[PAGE] = 1;
        SYS(munmap((void *)map, PRIVATE_BYTES));
    }
}

static uint8_t model[MIXED_BYTES];
static size_t size;

/* A range that begins inside of a file of `end` bytes. */
static void choose(size_t end, size_t *at, size_t *len)
{
    *at = rng_below(&rng, end);
    *len = 1 + rng_below(&rng, PIECE_BYTES);
    if (*len > end - *at)
        *len = end - *at;
}

static void set_size(size_t to)
{
    SYS(ftruncate(fd, (off_t)to));
    if (to < size)
        memset(model + to, 0, size - to);
    size = to;
}

static void compare(const uint8_t *found, size_t at, size_t len, const char *by)
{
    for (size_t i = 0; i < len; i++)
        CHECK(found[i] == model[at + i], "%s: byte %zu is %#x instead of %#x", by, at + i, found[i],
              model[at + i]);
}

static void map_and(bool store)
{
    static uint8_t bytes[PIECE_BYTES];
    size_t at, len;
    choose(store ? MIXED_BYTES : size, &at, &len);
    if (store && at + len > size)
        set_size(at + len);
    size_t skip = at % PAGE;
    int prot = store ? PROT_READ | PROT_WRITE : PROT_READ;
    uint8_t *map = map_file(fd, skip + len, prot, MAP_SHARED, at - skip);
    if (store) {
        memset(model + at, (int)rng_next(&rng), len);
        memcpy(map + skip, model + at, len);
        if (rng_below(&rng, 8) == 0)
            SYS(msync(map, skip + len, MS_SYNC));
    } else {
        memcpy(bytes, map + skip, len);
        compare(bytes, at, len, "mapped");
    }
    SYS(munmap(map, skip + len));
}

static void mixed_rounds(long rounds)
{
    static uint8_t bytes[PIECE_BYTES];
    size_t at, len;
    set_size(MIXED_BYTES / 2);
    for (long i = 0; i < rounds; i++) {
        switch (size == 0 ? 2 : rng_below(&rng, 5)) {
        case 0:
            choose(size, &at, &len);
            CHECK(SYS(pread(fd, bytes, len, (off_t)at)) == (long)len, "a short read at %zu", at);
            compare(bytes, at, len, "read");
            break;
        case 1:
            choose(MIXED_BYTES, &at, &len);
            memset(model + at, (int)rng_next(&rng), len);
            CHECK(SYS(pwrite(fd, model + at, len, (off_t)at)) == (long)len, "a short write at %zu", at);
            size = at + len > size ? at + len : size;
            break;
        case 2:
            set_size(rng_below(&rng, MIXED_BYTES));
            break;
        case 3:
            map_and(false);
            break;
        default:
            map_and(true);
        }
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 5, "usage: remaps private|mixed FILE ROUNDS SEED");
    fd = (int)SYS(open(argv[2], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    long rounds = atol(argv[3]);
    rng = rng_new(strtoull(argv[4], NULL, 10), 0);
    uint64_t begin = now_ns();
    if (!strcmp(argv[1], "private"))
        private_rounds(rounds);
    else
        mixed_rounds(rounds);
    printf("%lu\n", (now_ns() - begin) / (uint64_t)rounds);
    return 0;
}
