/* Reads a whole file through a mapping in many orders, from several threads, and compares every word with the
 * pattern.
 *   read_all FILE SEED THREADS */
#include "common.h"

struct job {
    const uint8_t *base;
    uint64_t offset; /* of base in the file */
    size_t len;
    uint64_t seed;
    unsigned index, count;
    int order;
    uint64_t sum;
};

static const char *const ORDERS[] = {"sequential", "backward", "strided", "random"};

static uint64_t page_sum(const struct job *job, size_t page)
{
    size_t from = page * PAGE, n = job->len - from < PAGE ? job->len - from : PAGE;
    pattern_check(job->seed, job->offset + from, job->base + from, n, ORDERS[job->order]);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += job->base[from + i];
    return sum;
}

/* Every thread reads its share of the pages: a slice of the file, or every count-th page for the strided
 * order. */
static void *reader(void *argument)
{
    struct job *job = argument;
    size_t pages = (job->len + PAGE - 1) / PAGE;
    size_t from = pages * job->index / job->count, to = pages * (job->index + 1) / job->count;
    struct rng rng = rng_new(job->seed, job->index);
    job->sum = 0;
    switch (job->order) {
    case 0:
        for (size_t page = from; page < to; page++)
            job->sum += page_sum(job, page);
        break;
    case 1:
        for (size_t page = to; page-- > from;)
            job->sum += page_sum(job, page);
        break;
    case 2:
        for (size_t start = 0; start < 16; start++)
            for (size_t page = job->index + start * job->count; page < pages; page += 16 * job->count)
                job->sum += page_sum(job, page);
        break;
    default:
        for (size_t i = 0; i < (to - from) / 2; i++)
            job->sum += page_sum(job, rng_below(&rng, pages));
    }
    return NULL;
}

static void read_in_order(const uint8_t *base, uint64_t offset, size_t len, uint64_t seed, unsigned threads,
                          int order)
{
    struct job jobs[64];
    pthread_t ids[64];
    uint64_t sum = 0;
    for (unsigned i = 0; i < threads; i++) {
        jobs[i] = (struct job){base, offset, len, seed, i, threads, order, 0};
        SPAWN(&ids[i], reader, &jobs[i]);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        sum += jobs[i].sum;
    }
    printf("%s from %#llx: %llu\n", ORDERS[order], (unsigned long long)offset, (unsigned long long)sum);
}

static void read_with(int fd, size_t len, int flags, int advice, uint64_t seed, unsigned threads)
{
    uint8_t *base = map_file(fd, len, PROT_READ, flags, 0);
    if (advice >= 0)
        SYS(madvise(base, len, advice));
    for (int order = 0; order < 4; order++)
        read_in_order(base, 0, len, seed, threads, order);
    /* What is not needed now must come back when it is touched again. */
    SYS(madvise(base, len / 2, MADV_DONTNEED));
    read_in_order(base, 0, len, seed, threads, 3);
    SYS(munmap(base, len));
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: read_all FILE SEED THREADS");
    uint64_t seed = strtoull(argv[2], NULL, 0);
    unsigned threads = (unsigned)atoi(argv[3]);
    CHECK(threads >= 1 && threads <= 64, "1 to 64 threads");
    int fd = (int)SYS(open(argv[1], O_RDONLY));
    size_t len = file_size(fd);

    read_with(fd, len, MAP_SHARED, -1, seed, threads);
    read_with(fd, len, MAP_PRIVATE, -1, seed, 1);
    read_with(fd, len, MAP_SHARED, MADV_RANDOM, seed, threads);
    read_with(fd, len, MAP_SHARED, MADV_SEQUENTIAL, seed, threads);
    read_with(fd, len, MAP_PRIVATE, MADV_WILLNEED, seed, threads);
    read_with(fd, len, MAP_SHARED | MAP_POPULATE, MADV_NORMAL, seed, threads);

    /* A part from the middle, with the descriptor closed before the first access. */
    size_t offset = len / 3 / PAGE * PAGE;
    uint8_t *part = map_file(fd, len - offset, PROT_READ, MAP_SHARED, offset);
    SYS(close(fd));
    for (int order = 0; order < 4; order++)
        read_in_order(part, offset, len - offset, seed, threads, order);
    return 0;
}
