/* Anonymous memory and private copies of a file's pages, more than the budget has.
 *   memory arrays MIB      threads fill an array and check it, twice
 *   memory limited MIB     arrays, also of a child, of a program that may not write large files any more
 *   memory limited_first MIB  the same, of one that limits itself before it has any memory
 *   memory allocator MIB   reserves, commits, purges and releases as allocators do
 *   memory hints MIB       a heap at an address of the program's choice
 *   memory advised MIB     an array that the program puts out by itself, beside another one
 *   memory refused MIB     an array that the kernel is asked wrong things of, and that is still one mapping
 *   memory grow MIB        an array that grows by mremap
 *   memory top MIB         arrays near the end of the addresses grow beyond what is left there
 *   memory churn MIB       children have what other threads had mapped, moved and filled before the fork
 *   memory forks MIB       children ten deep have what their parents had, and their own stores
 *   memory promised MIB    whether so much, which nobody has, can be mapped, and how
 *   memory copies FILE     a private mapping that is stored to; the file stays as it is
 * MIB: of memory, a quarter of which nothing makes smaller. */
#include "common.h"
#include <sys/resource.h>

#define THREADS 4
#define WORDS (PAGE / sizeof(uint64_t))

/* Zeros, what compresses, and noise, by page. */
static uint64_t expected(size_t word, uint64_t seed)
{
    size_t page = word / WORDS;
    switch (page % 4) {
    case 0:
        return mix(word ^ seed << 40);
    case 1:
        return word % WORDS == 5 ? mix(page ^ seed) : 0;
    default:
        return word % 4 == 0 ? mix(word ^ seed << 40) : page + seed;
    }
}

static void fill(uint64_t *at, size_t from, size_t to, uint64_t seed)
{
    for (size_t word = from; word < to; word++)
        at[word] = expected(word, seed);
}

static void check(const uint64_t *at, size_t from, size_t to, uint64_t seed)
{
    for (size_t word = from; word < to; word++)
        CHECK(at[word] == expected(word, seed), "word %zu is %#lx instead of %#lx", word, (long)at[word],
              (long)expected(word, seed));
}

static void *map(size_t bytes, int prot, int flags)
{
    void *at = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    return at;
}

static uint64_t *array;
static size_t array_words;

static void *one_part(void *number)
{
    /* Blocks of 16 pages, in turn, so that neighbours are different threads'. */
    size_t block = 16 * WORDS;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        for (size_t at = (size_t)(uintptr_t)number * block; at < array_words; at += THREADS * block)
            fill(array, at, at + block, seed);
        for (size_t at = (size_t)(uintptr_t)number * block; at < array_words; at += THREADS * block)
            check(array, at, at + block, seed);
    }
    return NULL;
}

static void arrays(size_t bytes)
{
    array = map(bytes, PROT_READ | PROT_WRITE, 0);
    array_words = bytes / sizeof *array;
    pthread_t ids[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        SPAWN(&ids[i], one_part, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    check(array, 0, array_words, 2);
    SYS(munmap(array, bytes));
}

static volatile sig_atomic_t xfsz;

static void count_xfsz(int sig)
{
    (void)sig;
    xfsz++;
}

static void limited(size_t bytes, bool first)
{
    static const rlim_t most = 8 * MIB;
    struct sigaction action = {.sa_handler = count_xfsz};
    SYS(sigaction(SIGXFSZ, &action, NULL));
    void *before = map(MIB, PROT_READ | PROT_WRITE, 0);
    if (!first)
        fill(before, 0, MIB / 8, 1);
    struct rlimit limit, after;
    SYS(getrlimit(RLIMIT_FSIZE, &limit));
    limit.rlim_cur = most;
    if (!first)
        limit.rlim_max = most;
    SYS(setrlimit(RLIMIT_FSIZE, &limit));
    arrays(bytes);
    /* What is out when a child is made stays there for as long as the child has it. */
    SYS(munmap(before, MIB));
    fflush(stdout);
    pid_t child = SYS(fork());
    if (child == 0)
        arrays(bytes);
    SYS(getrlimit(RLIMIT_FSIZE, &after));
    CHECK(after.rlim_cur == limit.rlim_cur && after.rlim_max == limit.rlim_max, "the limit is %llu, %llu",
          (unsigned long long)after.rlim_cur, (unsigned long long)after.rlim_max);
    CHECK(xfsz == 0, "memory has raised SIGXFSZ");
    int fd = (int)SYS(open("/var/tmp", O_RDWR | O_TMPFILE, 0600));
    SYS_FAILS(pwrite(fd, "x", 1, (off_t)most), EFBIG);
    CHECK(xfsz == 1, "the limit is there");
    if (child == 0)
        _exit(0);
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %#x", status);
    printf("ok\n");
    fflush(stdout);
    /* The library's report about the program at its end has limits of its own. */
    limit.rlim_cur = 0;
    SYS(setrlimit(RLIMIT_FSIZE, &limit));
    exit(0);
}

static void allocator(size_t bytes)
{
    size_t chunk = 4 * MIB, words = chunk / sizeof(uint64_t);
    /* Aligned, by cutting off both ends of what is larger. */
    char *wide = map(bytes + chunk, PROT_NONE, MAP_NORESERVE);
    char *heap = (char *)(((uintptr_t)wide + chunk - 1) & ~(chunk - 1));
    if (heap > wide)
        SYS(munmap(wide, heap - wide));
    SYS(munmap(heap + bytes, wide + bytes + chunk - (heap + bytes)));
    for (size_t at = 0; at < bytes; at += chunk) {
        SYS(mprotect(heap + at, chunk, PROT_READ | PROT_WRITE));
        fill((uint64_t *)(heap + at), 0, words, at / chunk);
    }
    for (size_t at = 0; at < bytes; at += chunk) {
        uint64_t *here = (uint64_t *)(heap + at);
        check(here, 0, words, at / chunk);
        switch (at / chunk % 4) {
        case 0: /* Purged: zeros. */
            SYS(madvise(here, chunk, MADV_DONTNEED));
            break;
        case 1: /* Decommitted and committed again: zeros. */
            CHECK(mmap(here, chunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                       0) == here,
                  "mmap: %s", strerror(errno));
            SYS(mprotect(here, chunk, PROT_READ | PROT_WRITE));
            break;
        case 2: /* Half of it lazily freed, and stored to again: the new bytes. */
            SYS(madvise(here, chunk / 2, MADV_FREE));
            fill(here, 0, words / 2, 100);
            break;
        default:
            SYS(madvise(here, chunk, MADV_HUGEPAGE));
        }
    }
    for (size_t at = 0; at < bytes; at += chunk) {
        uint64_t *here = (uint64_t *)(heap + at);
        switch (at / chunk % 4) {
        case 0:
        case 1:
            for (size_t word = 0; word < words; word++)
                CHECK(here[word] == 0, "word %zu of chunk %zu came back", word, at / chunk);
            break;
        case 2:
            check(here, 0, words / 2, 100);
            check(here, words / 2, words, at / chunk);
            break;
        default:
            check(here, 0, words, at / chunk);
        }
    }
    SYS(munmap(heap, bytes));
}

static void grow(size_t bytes)
{
    size_t now = MIB;
    uint64_t *at = map(now, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, now / 8, 3);
    while (now < bytes) {
        size_t next = now * 3 / 2 / PAGE * PAGE;
        at = mremap(at, now, next, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED, "mremap: %s", strerror(errno));
        fill(at, now / 8, next / 8, 3);
        now = next;
    }
    check(at, 0, now / 8, 3);
    SYS(munmap(at, now));
}

/* Started without random addresses, so that mappings lie near the end of them. */
static void top(size_t bytes)
{
    size_t words = bytes / 8, end = ((size_t)1 << 47) - PAGE;
    uint64_t *at = map(bytes, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, words, 3);
    size_t larger = end - (uintptr_t)at + 16 * MIB;
    CHECK(larger < (size_t)1 << 36, "%p is not near the end", (void *)at);
    errno = 0;
    void *in_place = mremap(at, bytes, larger, 0);
    CHECK(in_place == MAP_FAILED && errno != 0, "%zu MiB have no room at %p", larger / MIB, (void *)at);
    check(at, 0, words, 3);
    uint64_t *moved = mremap(at, bytes, larger, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED || errno == ENOMEM, "mremap to %zu MiB: %s", larger / MIB, strerror(errno));
    size_t has = moved == MAP_FAILED ? bytes : larger;
    at = moved == MAP_FAILED ? at : moved;
    check(at, 0, words, 3);
    CHECK(has == bytes || at[words + 5] == 0, "the new end is not zero");
    void *refused = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, (void *)(end - PAGE));
    CHECK(refused == MAP_FAILED && errno == EINVAL, "a hint that cannot be: %s", strerror(errno));
    check(at, 0, words, 3);
    SYS(munmap(at, has));
}

/* Blocks of all threads; null while they are changed. */
static struct { _Atomic(uint64_t *) at; size_t words; uint64_t seed; } churned[8];
static atomic_int churning;

static void *churn_one(void *number)
{
    uintptr_t mine = (uintptr_t)number;
    struct rng rng = rng_new(11, mine);
    uint64_t *at = NULL;
    size_t words = 0;
    for (uint64_t turn = 1; atomic_load(&churning); turn++) {
        size_t next = (1 + rng_next(&rng) % 8) * MIB / 16, kept = words < next ? words : next;
        atomic_store(&churned[mine].at, NULL);
        if (at && rng_next(&rng) % 2) {
            at = mremap(at, words * 8, next * 8, MREMAP_MAYMOVE);
            CHECK(at != MAP_FAILED, "mremap: %s", strerror(errno));
            check(at, 0, kept, churned[mine].seed);
            fill(at, kept, next, churned[mine].seed);
        } else {
            if (at)
                SYS(munmap(at, words * 8));
            churned[mine].seed = turn * 8 + mine;
            at = map(next * 8, PROT_READ | PROT_WRITE, 0);
            fill(at, 0, next, churned[mine].seed);
        }
        words = churned[mine].words = next;
        atomic_store(&churned[mine].at, at);
    }
    atomic_store(&churned[mine].at, NULL);
    if (at)
        SYS(munmap(at, words * 8));
    return NULL;
}

static void churn(size_t bytes)
{
    pthread_t threads[8];
    uint64_t *more = map(bytes, PROT_READ | PROT_WRITE, 0);
    atomic_store(&churning, 1);
    for (uintptr_t i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, churn_one, (void *)i) == 0, "a thread");
    fflush(stdout);
    for (int turn = 0; turn < 60; turn++) {
        fill(more, 0, bytes / 8, turn);
        pid_t child = SYS(fork());
        if (child == 0) {
            check(more, 0, bytes / 8, turn);
            for (int i = 0; i < 8; i++) {
                uint64_t *at = atomic_load(&churned[i].at);
                if (at) {
                    check(at, 0, churned[i].words, churned[i].seed);
                    fill(at, 0, churned[i].words, 1);
                }
            }
            /* Its parent goes on meanwhile with memory that both have. */
            if (turn % 20 == 19)
                sleep(2);
            _exit(0);
        }
        int status;
        SYS(waitpid(child, &status, 0));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %#x", status);
        SYS(munmap(more, bytes));
        more = map(bytes, PROT_READ | PROT_WRITE, 0);
    }
    atomic_store(&churning, 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static void forks(size_t bytes)
{
    size_t words = bytes / 8;
    uint64_t *at = map(bytes, PROT_READ | PROT_WRITE, 0);
    fill(at, 0, words, 0);
    for (uint64_t depth = 1; depth <= 10; depth++) {
        fflush(stdout);
        pid_t child = SYS(fork());
        if (child > 0) {
            int status;
            SYS(waitpid(child, &status, 0));
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %#x", status);
            /* What it has stored is not here. */
            check(at, 0, words, depth - 1);
            if (depth > 1)
                exit(0);
            break;
        }
        check(at, 0, words, depth - 1);
        fill(at, 0, words, depth);
        check(at, 0, words, depth);
        if (depth == 10)
            exit(0);
    }
    /* More memory afterwards. */
    uint64_t *more = map(bytes, PROT_READ | PROT_WRITE, 0);
    fill(more, 0, words, 11);
    check(more, 0, words, 11);
    check(at, 0, words, 0);
}

static void copies(const char *path)
{
    int fd = SYS(open(path, O_RDWR));
    struct stat stat;
    SYS(fstat(fd, &stat));
    size_t bytes = stat.st_size / PAGE * PAGE, words = bytes / 8;
    uint64_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    uint64_t sum = 0;
    for (size_t word = 0; word < words; word++)
        sum += at[word];
    fill(at, 0, words, 4);
    check(at, 0, words, 4);
    /* The kernel wants it, copies and all. */
    SYS(mlock(at, PAGE));
    check(at, 0, words, 4);
    SYS(munmap(at, bytes));
    at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
    uint64_t again = 0;
    for (size_t word = 0; word < words; word++)
        again += at[word];
    CHECK(again == sum, "the file has changed");
}

/* Where a heap is wanted by its address, as a JVM's and mimalloc's are. */
static void hints(size_t bytes)
{
    char *wanted = (char *)0x700000000;
    uint64_t *at = mmap(wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK((char *)at == wanted, "mmap gave %p: %s", (void *)at, strerror(errno));
    for (size_t from = 0; from < bytes; from += 4 * MIB)
        CHECK(mmap(wanted + from, 4 * MIB, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == wanted + from,
              "mmap: %s", strerror(errno));
    size_t words = bytes / sizeof *at;
    fill(at, 0, words, 5);
    /* The same again goes elsewhere, and may not be there. */
    uint64_t *other = mmap(wanted, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(other != MAP_FAILED && (other + 4 * MIB <= at || other >= at + words), "mmap gave %p",
          (void *)other);
    SYS(munmap(other, 32 * MIB));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    CHECK(mmap(wanted, 32 * MIB, PROT_READ, flags, -1, 0) == MAP_FAILED && errno == EEXIST, "not EEXIST");
    char *beside = wanted + bytes + MIB, *end = beside + 32 * MIB;
    CHECK(mmap(beside, 32 * MIB, PROT_READ | PROT_WRITE, flags, -1, 0) == beside, "mmap: %s",
          strerror(errno));
    memset(beside, 7, 32 * MIB);
    check(at, 0, words, 5);
    SYS(munmap(at, bytes));
    for (char *byte = beside; byte < end; byte += 4096)
        CHECK(*byte == 7, "byte %zu is %d", byte - beside, *byte);
    CHECK(mmap(wanted, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == wanted, "mmap: %s", strerror(errno));
    for (size_t word = 0; word < words; word += 512)
        CHECK(at[word] == 0, "word %zu is %#lx", word, (long)at[word]);
    SYS(munmap(at, bytes));
    SYS(munmap(beside, 32 * MIB));
}

/* What one thread puts out, again and again, comes back, and leaves room for all else. */
static void advised(size_t bytes)
{
    size_t words = bytes / sizeof(uint64_t);
    uint64_t *at = map(bytes, PROT_READ | PROT_WRITE, 0), *other = map(bytes, PROT_READ | PROT_WRITE, 0);
    for (uint64_t round = 1; round <= 3; round++) {
        fill(at, 0, words, round);
        SYS(madvise(at, bytes, MADV_PAGEOUT));
        check(at, words / 4, words / 2, round);
        SYS(madvise(at, bytes / 2, MADV_COLD));
    }
    fill(other, 0, words, 9);
    check(at, 0, words, 3);
    check(other, 0, words, 9);
    SYS(munmap(at, bytes));
    SYS(munmap(other, bytes));
}

/* One line for each way to ask: the errno, or 0. */
static void promised(size_t bytes)
{
    int more[] = { 0, MAP_NORESERVE, MAP_POPULATE };
    /* There is memory. */
    char *own = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED, "mmap: %m");
    memset(own, 1, 4 * MIB);
    int rights[] = { PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE };
    for (size_t way = 0; way < 9; way++) {
        /* What can be had is not to be touched. */
        if (more[way / 3] == MAP_POPULATE && bytes < (size_t)1 << 46)
            continue;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | more[way / 3];
        void *at = mmap(NULL, bytes, rights[way % 3], flags, -1, 0);
        printf("%zu: %d\n", way, at == MAP_FAILED ? errno : 0);
        if (at != MAP_FAILED)
            CHECK(munmap(at, bytes) == 0, "munmap: %m");
    }
    void *block = malloc(bytes);
    printf("malloc: %d\n", block == NULL ? errno : 0);
    free(block);
}

static void fails_with(int expected, long result, const char *call)
{
    CHECK(result == -1 && errno == expected, "%s: %ld, %s", call, result, strerror(errno));
}

/* What the kernel refuses changes nothing: the array is one mapping still, which can grow as a whole. */
static void refused(size_t bytes)
{
    uint8_t *before = map(PAGE + bytes, PROT_READ | PROT_WRITE, 0), *start = before + PAGE;
    CHECK(!munmap(before, PAGE), "munmap: %s", strerror(errno));
    array = (uint64_t *)start;
    fill(array, 0, bytes / sizeof(uint64_t), 7);
    uint8_t *middle = start + bytes / 2;
    fails_with(EINVAL, mlock2(middle, PAGE, 0x80), "mlock2");
    fails_with(EINVAL, mprotect(middle, PAGE, PROT_READ | 0x100), "mprotect");
    fails_with(EINVAL, pkey_mprotect(middle, PAGE, PROT_READ, 14), "pkey_mprotect");
    fails_with(EINVAL, madvise(middle, PAGE, 99), "madvise");
    fails_with(EINVAL, remap_file_pages(middle, PAGE, PROT_READ, 0, 0), "remap_file_pages");
    fails_with(EINVAL, (long)mremap(before, PAGE, (size_t)1 << 50, 0), "mremap to more than there is");
    /* These begin where nothing is mapped. */
    fails_with(EFAULT, (long)mremap(before, 4 * PAGE, PAGE, 0), "mremap");
    fails_with(EFAULT, (long)mremap(before, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE), "mremap that may move");
    uint8_t *grown = mremap(start, bytes, 2 * bytes, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "the array does not grow: %s", strerror(errno));
    check((uint64_t *)grown, 0, bytes / sizeof(uint64_t), 7);
    CHECK(!munmap(grown, 2 * bytes), "munmap: %s", strerror(errno));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "memory arrays|allocator|grow|forks MIB, memory copies FILE");
    size_t bytes = (size_t)atol(argv[2]) * MIB;
    if (strcmp(argv[1], "arrays") == 0)
        arrays(bytes);
    else if (strcmp(argv[1], "limited") == 0)
        limited(bytes, false);
    else if (strcmp(argv[1], "limited_first") == 0)
        limited(bytes, true);
    else if (strcmp(argv[1], "allocator") == 0)
        allocator(bytes);
    else if (strcmp(argv[1], "hints") == 0)
        hints(bytes);
    else if (strcmp(argv[1], "advised") == 0)
        advised(bytes);
    else if (strcmp(argv[1], "refused") == 0)
        refused(bytes);
    else if (strcmp(argv[1], "grow") == 0)
        grow(bytes);
    else if (strcmp(argv[1], "top") == 0)
        top(bytes);
    else if (strcmp(argv[1], "churn") == 0)
        churn(bytes);
    else if (strcmp(argv[1], "promised") == 0)
        promised(bytes);
    else if (strcmp(argv[1], "forks") == 0)
        forks(bytes);
    else if (strcmp(argv[1], "copies") == 0)
        copies(argv[2]);
    else
        FAIL("what is %s?", argv[1]);
    printf("ok\n");
    return 0;
}
