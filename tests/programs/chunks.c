/* Chunks of a file are read whole at places that look random, while the file and the mapping change.
 *   chunks FILE SEED ROUNDS    FILE and FILE.cut are made
 *
 * Threads read chunks of FILE, each its own or in turns within one, and compare all bytes. Meanwhile the main
 * thread forks children that read chunks, too, gives advice, and maps parts of chunks anew. FILE.cut ends
 * within a chunk right after the chunk's first page was read, while the rest may be being read, and grows
 * again with other bytes. */
#include "common.h"
#include <sys/wait.h>

#define THREADS 3
#define CHUNK MIB
#define CHUNKS ((size_t)96)
/* Chunks begin at no multiple of anything but a page. */
#define FIRST (3 * PAGE)
#define BYTES (FIRST + CHUNKS * CHUNK)
#define CUT_CHUNKS ((size_t)48)
#define CUT_BYTES (FIRST + CUT_CHUNKS * CHUNK)
#define TURN (16 * PAGE)

static uint64_t seed;
static const uint8_t *all;
static atomic_bool stop;
static atomic_size_t together;

static void read_chunk(size_t chunk)
{
    size_t at = FIRST + chunk * CHUNK;
    pattern_check(seed, at, all + at, CHUNK, "a chunk");
}

/* Each thread reads a chunk of its own, or takes the next part of the one that all read. */
static void *reader(void *argument)
{
    struct rng rng = rng_new(seed, (uint64_t)(uintptr_t)argument);
    while (!stop) {
        if (rng_below(&rng, 2)) {
            read_chunk(rng_below(&rng, CHUNKS));
            continue;
        }
        for (size_t i = 0; i < CHUNK / TURN; i++) {
            size_t turn = atomic_fetch_add(&together, TURN);
            size_t at = FIRST + mix(turn / CHUNK) % CHUNKS * CHUNK + turn % CHUNK;
            pattern_check(seed, at, all + at, TURN, "a part of a chunk");
        }
    }
    return NULL;
}

static void fork_reader(struct rng *rng)
{
    pid_t child = (pid_t)SYS(fork());
    if (!child) {
        read_chunk(rng_below(rng, CHUNKS));
        read_chunk(rng_below(rng, CHUNKS));
        _exit(0);
    }
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "a child ended with %#x", status);
}

/* Changes nothing that a reader can see. */
static void disturb(int fd, struct rng *rng)
{
    static const int advice[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED};
    size_t at = rng_below(rng, BYTES / PAGE) * PAGE;
    size_t len = (1 + rng_below(rng, 300)) * PAGE;
    len = len < BYTES - at ? len : BYTES - at;
    void *part = (void *)(all + at);
    if (rng_below(rng, 2))
        SYS(madvise(part, len, advice[rng_below(rng, sizeof advice / sizeof *advice)]));
    else
        CHECK(mmap(part, len, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (off_t)at) == part, "MAP_FIXED: %s",
              strerror(errno));
}

static uint64_t cut_seed;

static void write_cut(int fd, size_t from)
{
    static uint8_t buffer[CHUNK];
    for (size_t at = from; at < CUT_BYTES; at += sizeof buffer) {
        size_t n = CUT_BYTES - at < sizeof buffer ? CUT_BYTES - at : sizeof buffer;
        pattern_fill(cut_seed, at, buffer, n);
        pwrite_all(fd, buffer, n, at);
    }
}

/* The file ends within a chunk whose first page has just been read, and grows again with other bytes. */
static void cut(int fd, const uint8_t *base, struct rng *rng)
{
    uint64_t before = cut_seed++;
    size_t at = FIRST + rng_below(rng, CUT_CHUNKS) * CHUNK;
    size_t end = at + PAGE + rng_below(rng, CHUNK / PAGE - 1) * PAGE;
    pattern_check(before, at, base + at, PAGE, "the first page of a chunk");
    SYS(ftruncate(fd, (off_t)end));
    LOAD_RAISES(base + end, SIGBUS, BUS_ADRERR);
    pattern_check(before, at, base + at, end - at, "what is left of a chunk");
    write_cut(fd, end);
    pattern_check(cut_seed, end, base + end, CUT_BYTES - end, "what has grown");
    write_cut(fd, 0);
    for (size_t i = 0; i < 8; i++) {
        at = FIRST + rng_below(rng, CUT_CHUNKS) * CHUNK;
        pattern_check(cut_seed, at, base + at, CHUNK, "a chunk with other bytes");
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: chunks FILE SEED ROUNDS");
    seed = strtoull(argv[2], NULL, 0);
    cut_seed = seed + 1;
    probe_install();
    SYS(close(make_file(argv[1], "", seed, BYTES)));
    int fd = (int)SYS(open(argv[1], O_RDONLY)), cut_fd = make_file(argv[1], ".cut", cut_seed, CUT_BYTES);
    all = map_file(fd, BYTES, PROT_READ, MAP_SHARED, 0);
    const uint8_t *base = map_file(cut_fd, CUT_BYTES, PROT_READ, MAP_SHARED, 0);
    struct rng rng = rng_new(seed, 100);
    /* Chunks are known once they were read before. */
    for (size_t i = 0; i < 4 * CHUNKS; i++)
        read_chunk(rng_below(&rng, CHUNKS));
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        SPAWN(&threads[i], reader, (void *)i);
    int rounds = atoi(argv[3]);
    for (int round = 0; round < rounds; round++) {
        /* A fork may give the file that is written to the kernel, so half of the rounds have none. */
        if (round >= rounds / 2)
            fork_reader(&rng);
        for (int i = 0; i < 20; i++)
            disturb(fd, &rng);
        cut(cut_fd, base, &rng);
    }
    stop = true;
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pattern_check(seed, 0, all, BYTES, "the file");
    pattern_check(cut_seed, 0, base, CUT_BYTES, "the file that was cut");
    puts("whole");
    return 0;
}
