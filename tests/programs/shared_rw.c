/* Threads that own interleaved stripes, smaller than a page and not aligned to anything, of one file that is
 * mapped twice. Each writes its bytes through one of the mappings and reads them back through the other and
 * by pread.
 *   shared_rw run FILE SEED THREADS ROUNDS
 *   shared_rw verify FILE SEED THREADS ROUNDS    checks by plain reads what the last round left */
#include "common.h"

enum { STRIPE = 13 };

static uint8_t *views[2];
static size_t len;
static uint64_t seed;
static unsigned threads, rounds;
static int fd;
static pthread_barrier_t barrier;

static uint8_t value(uint64_t offset, unsigned round)
{
    return pattern_byte(seed + round, offset);
}

static bool owns(unsigned thread, uint64_t offset)
{
    return offset / STRIPE % threads == thread;
}

static void check_by_pread(unsigned thread, unsigned round, struct rng *rng)
{
    uint8_t buffer[3000];
    uint64_t offset = rng_below(rng, len - sizeof buffer);
    pread_all(fd, buffer, sizeof buffer, offset);
    for (size_t i = 0; i < sizeof buffer; i++)
        CHECK(!owns(thread, offset + i) || buffer[i] == value(offset + i, round),
              "pread after a store in round %u: offset %#llx is %#x, not %#x", round,
              (unsigned long long)(offset + i), buffer[i], value(offset + i, round));
}

static void one_round(unsigned thread, unsigned round, struct rng *rng)
{
    uint8_t *to = views[(thread + round) % 2];
    const uint8_t *from = views[(thread + round + 1) % 2];
    /* Half of the threads go upwards, half downwards, so that they meet on the same pages. */
    size_t stripes = len / STRIPE / threads;
    for (size_t i = 0; i < stripes; i++) {
        size_t which = thread % 2 ? stripes - 1 - i : i;
        uint64_t start = (which * threads + thread) * STRIPE;
        for (uint64_t at = start; at < start + STRIPE; at++)
            to[at] = value(at, round);
        if (which % 64 == 0)
            for (uint64_t at = start; at < start + STRIPE; at++)
                CHECK(((const volatile uint8_t *)from)[at] == value(at, round),
                      "the other mapping has %#x at %#llx in round %u, not %#x", from[at],
                      (unsigned long long)at, round, value(at, round));
    }
    for (int i = 0; i < 20; i++)
        check_by_pread(thread, round, rng);
    pthread_barrier_wait(&barrier);
    /* Every thread looks at what the others have written. */
    size_t stretch = len / threads;
    for (uint64_t at = thread * stretch; at < (thread + 1) * stretch; at++)
        if (at / STRIPE / threads < stripes)
            CHECK(from[at] == value(at, round), "after round %u the byte at %#llx is %#x, not %#x", round,
                  (unsigned long long)at, from[at], value(at, round));
    if (thread == 0)
        SYS(msync(to, len, round % 2 ? MS_SYNC : MS_ASYNC));
    pthread_barrier_wait(&barrier);
}

static void *worker(void *argument)
{
    unsigned thread = (unsigned)(uintptr_t)argument;
    struct rng rng = rng_new(seed, thread);
    for (unsigned round = 0; round < rounds; round++)
        one_round(thread, round, &rng);
    return NULL;
}

static void verify(void)
{
    uint8_t *bytes = malloc(len);
    pread_all(fd, bytes, len, 0);
    size_t covered = len / STRIPE / threads * threads * STRIPE;
    for (uint64_t at = 0; at < covered; at++)
        CHECK(bytes[at] == value(at, rounds - 1), "on file the byte at %#llx is %#x, not %#x",
              (unsigned long long)at, bytes[at], value(at, rounds - 1));
    free(bytes);
}

int main(int argc, char **argv)
{
    CHECK(argc == 6, "usage: shared_rw run|verify FILE SEED THREADS ROUNDS");
    seed = strtoull(argv[3], NULL, 0);
    threads = (unsigned)atoi(argv[4]);
    rounds = (unsigned)atoi(argv[5]);
    fd = (int)SYS(open(argv[2], O_RDWR));
    len = file_size(fd);
    if (!strcmp(argv[1], "verify")) {
        verify();
        return 0;
    }
    for (int i = 0; i < 2; i++)
        views[i] = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    pthread_t ids[64];
    CHECK(threads >= 1 && threads <= 64, "1 to 64 threads");
    pthread_barrier_init(&barrier, NULL, threads);
    for (unsigned i = 0; i < threads; i++)
        SPAWN(&ids[i], worker, (void *)(uintptr_t)i);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    for (int i = 0; i < 2; i++)
        SYS(munmap(views[i], len));
    verify();
    printf("%zu bytes, %u threads, %u rounds\n", len, threads, rounds);
    return 0;
}
