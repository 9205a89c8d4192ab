/* Blocks of the heap around the size from which they are mappings, more than the budget has.
 *   heap blocks MIB     all functions that allocate, resize and free
 *   heap storm MIB      threads that resize and free each other's blocks
 *   heap forks MIB      children have their parents' blocks, resize and free them
 *   heap small MIB      many small blocks of several threads
 *   heap refused        what is no alignment, or too much: whether there is a block, and errno
 *   heap again          the same large block, allocated and freed again and again
 * MIB: of blocks at a time. */
#include "common.h"
#include <malloc.h>

#define THREADS 4

/* The word of a block at a place, by the block's seed: three of four pages compress. */
static uint64_t expected(uint64_t seed, size_t word)
{
    return word / 512 % 4 == 0 ? mix(seed << 32 ^ word) : seed + word / 512;
}

struct block {
    uint64_t *at;
    size_t bytes;
    uint64_t seed;
};

static void fill(const struct block *block, size_t from)
{
    for (size_t word = from / 8; word < block->bytes / 8; word++)
        block->at[word] = expected(block->seed, word);
}

/* A few words of each page, and the ends. */
static void check(const struct block *block)
{
    size_t words = block->bytes / 8;
    for (size_t word = 0; word < words; word += word % 512 == 3 ? 509 : 1)
        CHECK(block->at[word] == expected(block->seed, word), "word %zu of %zu of block %lu is %#lx", word,
              words, (long)block->seed, (long)block->at[word]);
    CHECK(words == 0 || block->at[words - 1] == expected(block->seed, words - 1), "the end of block %lu",
          (long)block->seed);
}

static int only_small;

/* From 16 bytes to 2 MiB, half of them around 256 KiB; or up to half a kilobyte. */
static size_t some_bytes(struct rng *rng)
{
    if (only_small)
        return 16 + rng_next(rng) % 496;
    uint64_t kind = rng_next(rng) % 4;
    size_t bytes = kind == 0 ? rng_next(rng) % 4096
                   : kind == 1 ? rng_next(rng) % (2 * MIB)
                               : 256 * KIB - 64 + rng_next(rng) % 128;
    return bytes < 16 ? 16 : bytes;
}

static void allocate(struct block *block, struct rng *rng)
{
    static atomic_ulong seeds = 1;
    size_t bytes = some_bytes(rng), align = (size_t)1 << (4 + rng_next(rng) % (only_small ? 5 : 18));
    void *at = NULL;
    errno = 77;
    switch (rng_next(rng) % 8) {
    case 0:
        at = calloc(8, (bytes + 7) / 8);
        for (size_t word = 0; at && word < bytes / 8; word++)
            CHECK(((uint64_t *)at)[word] == 0, "calloc gave word %zu of %zu with %#lx", word, bytes / 8,
                  (long)((uint64_t *)at)[word]);
        break;
    case 1:
        CHECK(posix_memalign(&at, align, bytes) == 0, "posix_memalign");
        CHECK((uintptr_t)at % align == 0, "%p is not aligned to %zu", at, align);
        break;
    case 2:
        at = memalign(align, bytes);
        CHECK((uintptr_t)at % align == 0, "%p is not aligned to %zu", at, align);
        break;
    case 3:
        at = reallocarray(NULL, (bytes + 7) / 8, 8);
        break;
    default:
        at = malloc(bytes);
    }
    CHECK(at, "no block of %zu bytes: %s", bytes, strerror(errno));
    CHECK((uintptr_t)at % 16 == 0 && malloc_usable_size(at) >= bytes, "%zu bytes usable of %zu",
          malloc_usable_size(at), bytes);
    *block = (struct block){at, bytes, atomic_fetch_add(&seeds, 1)};
    fill(block, 0);
}

static void resize(struct block *block, struct rng *rng)
{
    size_t bytes = some_bytes(rng), before = block->bytes;
    void *at = realloc(block->at, bytes);
    CHECK(at, "no %zu bytes instead of %zu: %s", bytes, before, strerror(errno));
    *block = (struct block){at, bytes < before ? bytes : before, block->seed};
    check(block);
    block->bytes = bytes;
    fill(block, before / 8 * 8);
}

static void give_up(struct block *block)
{
    check(block);
    errno = 77;
    free(block->at);
    CHECK(errno == 77, "free has set errno to %s", strerror(errno));
    block->at = NULL;
}

/* Steps with blocks of up to so many bytes in all. */
static void steps(struct block *blocks, size_t count, size_t bytes, size_t turns, struct rng *rng)
{
    size_t all = 0;
    for (size_t i = 0; i < count; i++)
        all += blocks[i].at ? blocks[i].bytes : 0;
    for (size_t turn = 0; turn < turns; turn++) {
        struct block *block = &blocks[rng_next(rng) % count];
        all -= block->at ? block->bytes : 0;
        if (block->at && (all > bytes || rng_next(rng) % 3 == 0))
            give_up(block);
        else if (block->at)
            resize(block, rng);
        else if (all < bytes)
            allocate(block, rng);
        all += block->at ? block->bytes : 0;
    }
}

static void give_all_up(struct block *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (blocks[i].at)
            give_up(&blocks[i]);
}

static void blocks_of_one_thread(size_t bytes)
{
    size_t count = bytes / (256 * KIB);
    struct block *blocks = calloc(count, sizeof *blocks);
    struct rng rng = rng_new(7, 0);
    steps(blocks, count, bytes, 8 * count, &rng);
    give_all_up(blocks, count);
    free(blocks);
    /* What must fail, and what is nothing. */
    volatile size_t huge = SIZE_MAX;
    errno = 0;
    CHECK(!malloc(huge - 5000) && errno == ENOMEM, "malloc of all memory");
    CHECK(!calloc(huge / 4, 8) && !reallocarray(NULL, huge / 2, 3), "an overflow");
    void *at = malloc(MIB);
    CHECK(!realloc(at, huge / 2 - 100) && malloc_usable_size(at) >= MIB, "too much, and the block is there");
    /* A terabyte of addresses may be there, or not. */
    memset(at, 5, MIB);
    char *larger = realloc(at, ((size_t)1 << 40) + MIB);
    at = larger ? larger : at;
    CHECK(((char *)at)[0] == 5 && ((char *)at)[MIB - 1] == 5, "a block is not what it was");
    CHECK(posix_memalign((void **)&larger, 24, MIB) == EINVAL, "an alignment of 24");
    free(at);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0, "the size of nothing");
    at = pvalloc(300 * KIB + 1);
    CHECK((uintptr_t)at % PAGE == 0 && malloc_usable_size(at) >= 76 * PAGE, "pvalloc");
    CHECK(realloc(at, 0) == NULL, "no bytes");
    malloc_trim(0);
}

/* Blocks that any thread may take. */
static struct block shelf[64];
static pthread_mutex_t shelf_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t storm_bytes;

static void *one_storm(void *number)
{
    struct rng rng = rng_new(1000, (uintptr_t)number);
    struct block own[64] = {0};
    for (int turn = 0; turn < 60; turn++) {
        steps(own, 64, storm_bytes / THREADS / 2, 32, &rng);
        for (int i = 0; i < 16; i++) {
            struct block *mine = &own[rng_next(&rng) % 64], *there = &shelf[rng_next(&rng) % 64];
            pthread_mutex_lock(&shelf_lock);
            struct block other = *there;
            *there = *mine;
            pthread_mutex_unlock(&shelf_lock);
            *mine = other;
        }
    }
    give_all_up(own, 64);
    return NULL;
}

static void storm(size_t bytes)
{
    storm_bytes = bytes;
    pthread_t ids[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        SPAWN(&ids[i], one_storm, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    give_all_up(shelf, 64);
}

static void forks(size_t bytes)
{
    size_t count = bytes / MIB;
    struct block *blocks = calloc(count, sizeof *blocks);
    struct rng rng = rng_new(11, 0);
    steps(blocks, count, bytes, 4 * count, &rng);
    for (int generation = 0; generation < 4; generation++) {
        pid_t child = SYS(fork());
        if (child > 0) {
            int status;
            steps(blocks, count, bytes, count, &rng);
            SYS(waitpid(child, &status, 0));
            CHECK(status == 0, "generation %d ended with %#x", generation, status);
            give_all_up(blocks, count);
            if (generation > 0)
                _exit(0);
            return;
        }
        rng = rng_new(100, generation);
        steps(blocks, count, bytes, count, &rng);
    }
    give_all_up(blocks, count);
    _exit(0);
}

/* Many small ones: a thread each has its share, and checks its neighbour's. */
static struct block *many;
static size_t many_count;

static void *make_some(void *number)
{
    struct rng rng = rng_new(31, (uintptr_t)number);
    for (size_t i = (uintptr_t)number; i < many_count; i += THREADS)
        allocate(&many[i], &rng);
    return NULL;
}

static void *change_some(void *number)
{
    struct rng rng = rng_new(32, (uintptr_t)number);
    for (size_t i = ((uintptr_t)number + 1) % THREADS; i < many_count; i += THREADS) {
        check(&many[i]);
        uint64_t what = rng_next(&rng) % 8;
        if (what == 0)
            resize(&many[i], &rng);
        else if (what == 1) {
            give_up(&many[i]);
            allocate(&many[i], &rng);
        }
    }
    return NULL;
}

static void by_threads(void *(*body)(void *))
{
    pthread_t ids[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        SPAWN(&ids[i], body, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
}

static void small(size_t bytes)
{
    only_small = 1;
    many_count = bytes / 264;
    many = calloc(many_count, sizeof *many);
    by_threads(make_some);
    by_threads(change_some);
    give_all_up(many, many_count);
    free(many);
}

static void again(void)
{
    uint64_t *kept = malloc(MIB);
    for (int turn = 0; turn < 20000; turn++) {
        uint64_t *at = malloc(MIB);
        CHECK(at, "malloc: %s", strerror(errno));
        at[turn % 256 * 512] = turn;
        free(at);
    }
    free(kept);
}

static void say(const char *name, size_t align, size_t size, void *block)
{
    printf("%s %#zx %#zx: %s, errno %d\n", name, align, size, block ? "a block" : "none", errno);
    free(block);
    errno = 0;
}

/* Small blocks and large ones; before some have been allocated, and after. */
static void refused(void)
{
    static const size_t aligns[] = { 0, 1, 3, 8, 9, 24, 64, 4096, 4097, 1 << 20, (1 << 20) + 1, SIZE_MAX };
    static const size_t sizes[] = { 0, 8, 5000, 3 << 20, PTRDIFF_MAX, SIZE_MAX - 4095, SIZE_MAX };
    for (int turn = 0; turn < 2; turn++) {
        errno = 0;
        for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
            volatile size_t size = sizes[s];
            say("malloc", 0, size, malloc(size));
            say("calloc", 3, size, calloc(3, size));
            for (size_t a = 0; a < sizeof(aligns) / sizeof(*aligns); a++) {
                volatile size_t align = aligns[a];
                say("aligned_alloc", align, size, aligned_alloc(align, size));
                say("memalign", align, size, memalign(align, size));
                void *block = NULL;
                int error = posix_memalign(&block, align, size);
                printf("%d ", error);
                say("posix_memalign", align, size, error ? NULL : block);
            }
        }
        void *kept[1000];
        for (size_t i = 0; i < 1000; i++)
            CHECK((kept[i] = malloc(8000)) != NULL, "malloc: %s", strerror(errno));
        for (size_t i = 0; i < 1000; i++)
            free(kept[i]);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2, "usage: heap PART [MIB]");
    size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) * MIB : 0;
    if (strcmp(argv[1], "blocks") == 0)
        blocks_of_one_thread(bytes);
    else if (strcmp(argv[1], "storm") == 0)
        storm(bytes);
    else if (strcmp(argv[1], "forks") == 0)
        forks(bytes);
    else if (strcmp(argv[1], "small") == 0)
        small(bytes);
    else if (strcmp(argv[1], "refused") == 0)
        refused();
    else if (strcmp(argv[1], "again") == 0)
        again();
    else
        FAIL("no part %s", argv[1]);
    puts("ok");
    return 0;
}
