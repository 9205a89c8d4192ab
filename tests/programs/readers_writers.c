/* Readers and writers on records of one shared file. A record has a sequence lock, a version, a payload that
 * follows from both, and a checksum; it is larger than a page's remainder, so that it often crosses pages.
 *   readers_writers run FILE SEED THREADS OPERATIONS    half of the threads write, each OPERATIONS times
 *   readers_writers verify FILE SEED THREADS OPERATIONS */
#include "common.h"

enum { WORDS = 150 };

struct record {
    _Atomic uint32_t sequence; /* odd while a writer is at work */
    uint32_t index;
    _Atomic uint64_t version;
    _Atomic uint64_t checksum;
    _Atomic uint64_t payload[WORDS];
};

static struct record *records;
static size_t count;
static uint64_t seed;
static unsigned threads, operations;

static uint64_t payload_word(uint64_t index, uint64_t version, unsigned word)
{
    return version == 0 ? 0 : mix(seed + index * 1000003 + version * 7919 + word);
}

static void write_record(uint64_t index)
{
    struct record *record = &records[index];
    uint32_t even;
    for (unsigned spins = 0;; spins++) {
        even = atomic_load(&record->sequence);
        if (even % 2 == 0 && atomic_compare_exchange_weak(&record->sequence, &even, even + 1))
            break;
        if (spins % 64 == 63)
            sched_yield();
    }
    atomic_thread_fence(memory_order_seq_cst);
    uint64_t version = atomic_load(&record->version) + 1, sum = 0;
    atomic_store_explicit(&record->version, version, memory_order_relaxed);
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t word = payload_word(index, version, i);
        sum += word;
        atomic_store_explicit(&record->payload[i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&record->checksum, sum, memory_order_relaxed);
    atomic_store_explicit(&record->sequence, even + 2, memory_order_release);
}

/* The copy is consistent: taken while no writer was at work. */
static void read_record(uint64_t index)
{
    struct record *record = &records[index];
    uint64_t payload[WORDS], version, checksum;
    uint32_t before, after;
    for (unsigned spins = 0;; spins++) {
        before = atomic_load_explicit(&record->sequence, memory_order_acquire);
        version = atomic_load_explicit(&record->version, memory_order_relaxed);
        checksum = atomic_load_explicit(&record->checksum, memory_order_relaxed);
        for (unsigned i = 0; i < WORDS; i++)
            payload[i] = atomic_load_explicit(&record->payload[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        after = atomic_load_explicit(&record->sequence, memory_order_relaxed);
        if (before == after && before % 2 == 0)
            break;
        if (spins % 64 == 63)
            sched_yield();
    }
    CHECK(version * 2 == before, "record %llu: version %llu under sequence %u", (unsigned long long)index,
          (unsigned long long)version, before);
    uint64_t sum = 0;
    for (unsigned i = 0; i < WORDS; i++) {
        CHECK(payload[i] == payload_word(index, version, i), "record %llu version %llu: word %u is wrong",
              (unsigned long long)index, (unsigned long long)version, i);
        sum += payload[i];
    }
    CHECK(sum == checksum, "record %llu version %llu: the checksum is wrong", (unsigned long long)index,
          (unsigned long long)version);
}

static void *worker(void *argument)
{
    unsigned thread = (unsigned)(uintptr_t)argument;
    struct rng rng = rng_new(seed, thread);
    for (unsigned i = 0; i < operations; i++) {
        /* One access in four goes to a few records that everybody wants. */
        uint64_t index = i % 4 == 0 ? rng_below(&rng, 8) * (count / 8) : rng_below(&rng, count);
        if (thread % 2 == 0)
            write_record(index);
        else
            read_record(index);
    }
    return NULL;
}

static void verify(void)
{
    uint64_t versions = 0;
    for (uint64_t i = 0; i < count; i++) {
        read_record(i);
        versions += atomic_load(&records[i].version);
    }
    uint64_t expected = (uint64_t)(threads + 1) / 2 * operations;
    CHECK(versions == expected, "%llu writes are on the file, %llu were made", (unsigned long long)versions,
          (unsigned long long)expected);
    printf("%zu records, %llu writes\n", count, (unsigned long long)versions);
}

int main(int argc, char **argv)
{
    CHECK(argc == 6, "usage: readers_writers run|verify FILE SEED THREADS OPERATIONS");
    seed = strtoull(argv[3], NULL, 0);
    threads = (unsigned)atoi(argv[4]);
    operations = (unsigned)atoi(argv[5]);
    CHECK(threads >= 2 && threads <= 64, "2 to 64 threads");
    int fd = (int)SYS(open(argv[2], O_RDWR));
    size_t len = file_size(fd);
    count = len / sizeof(struct record);
    if (!strcmp(argv[1], "verify")) {
        records = malloc(len);
        pread_all(fd, records, len, 0);
        verify();
        return 0;
    }
    records = (struct record *)map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    pthread_t ids[64];
    for (unsigned i = 0; i < threads; i++)
        SPAWN(&ids[i], worker, (void *)(uintptr_t)i);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    verify();
    return 0;
}
