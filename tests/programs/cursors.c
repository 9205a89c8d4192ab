/* Threads that share a descriptor's position, and files that are mapped for the first time while they are
 * written.
 *   cursors FILE CASE ROUNDS     FILE, and files whose names begin with it, are made anew */
#include "common.h"
#include <sys/sendfile.h>

enum { THREADS = 4, FLUSHERS = 4, RECORD = 24 * 1024 + 640, RECORDS = 400, APPEND = 640 };
static const char *path;
static int fd, source;
static uint8_t *at;
static size_t len;
static _Atomic unsigned done_records;
static _Atomic bool over;

static const uint64_t OLD = 0x0101010101010101;

/* ---- writes: every record is somewhere, once, whatever is written back meanwhile ---- */

struct record {
    uint64_t thread, number, words[(RECORD - 16) / 8];
};

static struct record record_of(uint64_t thread, uint64_t number)
{
    struct record made = {.thread = thread, .number = number};
    for (size_t i = 0; i < sizeof made.words / 8; i++)
        made.words[i] = mix(thread * 1000003 + number * 31 + i);
    return made;
}

static void *write_records(void *argument)
{
    uint64_t thread = (uintptr_t)argument;
    for (uint64_t i = 0; i < RECORDS / THREADS; i++) {
        struct record made = record_of(thread + 1, i);
        struct iovec parts[2] = {{&made, 300}, {(uint8_t *)&made + 300, sizeof made - 300}};
        /* Only these: copy_file_range and sendfile at a shared position race with each other in the kernel,
         * too. */
        ssize_t n = i % 2 ? write(fd, &made, sizeof made) : writev(fd, parts, 2);
        CHECK(n == (ssize_t)sizeof made, "a write gave %zd: %s", n, strerror(errno));
        done_records++;
    }
    return NULL;
}

/* Makes pages dirty ahead of the position, and changes nothing. */
static void *touch(void *argument)
{
    (void)argument;
    while (!over) {
        size_t from = done_records * RECORD / PAGE;
        for (size_t page = from ? from - 1 : 0; page < from + 3 * RECORD / PAGE && page < len / PAGE;
             page++) {
            uint64_t seen = OLD;
            atomic_compare_exchange_strong((_Atomic uint64_t *)(at + page * PAGE + PAGE / 2), &seen, OLD);
        }
    }
    return NULL;
}

static void *write_back(void *argument)
{
    struct rng rng = rng_new(7, (uintptr_t)argument);
    while (!over) {
        size_t page = done_records * RECORD / PAGE + rng_below(&rng, 3 * RECORD / PAGE);
        if (page < len / PAGE)
            SYS(msync(at + page * PAGE, PAGE, MS_SYNC));
    }
    return NULL;
}

static void check_records(const uint8_t *bytes, const char *what)
{
    static bool seen[THREADS][RECORDS / THREADS];
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < RECORDS; i++) {
        struct record record;
        memcpy(&record, bytes + i * RECORD, RECORD);
        CHECK(record.thread >= 1 && record.thread <= THREADS && record.number < RECORDS / THREADS,
              "%s: record %zu is none", what, i);
        struct record right = record_of(record.thread, record.number);
        CHECK(!memcmp(&record, &right, RECORD), "%s: record %zu is damaged", what, i);
        CHECK(!seen[record.thread - 1][record.number], "%s: record %zu is there twice", what, i);
        seen[record.thread - 1][record.number] = true;
    }
}

static void writes(void)
{
    len = (RECORDS * RECORD + PAGE - 1) / PAGE * PAGE;
    pthread_t ids[THREADS + FLUSHERS + 1];
    fd = make_file(path, "", 1, 0);
    uint8_t *bytes = malloc(len);
    memset(bytes, 1, len);
    pwrite_all(fd, bytes, len, 0);
    at = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    done_records = 0;
    over = false;
    for (uintptr_t i = 0; i < THREADS; i++)
        SPAWN(&ids[i], write_records, (void *)i);
    SPAWN(&ids[THREADS], touch, NULL);
    for (uintptr_t i = 1; i <= FLUSHERS; i++)
        SPAWN(&ids[THREADS + i], write_back, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    over = true;
    for (int i = 0; i <= FLUSHERS; i++)
        pthread_join(ids[THREADS + i], NULL);
    check_records(at, "the mapping");
    SYS(msync(at, len, MS_SYNC));
    pread_all(fd, bytes, len, 0);
    check_records(bytes, "the file");
    free(bytes);
    SYS(munmap(at, len));
    SYS(close(fd));
}

/* ---- reads: what was stored before is read, wherever the position is ---- */

enum { PART = 2 * 4096 + 512 };
static uint64_t round_value;
static pthread_barrier_t barrier;

static void *read_parts(void *argument)
{
    bool seeks = argument != NULL;
    uint8_t *bytes = malloc(PART);
    for (;;) {
        pthread_barrier_wait(&barrier);
        if (over)
            break;
        for (;;) {
            if (seeks)
                SYS(lseek(fd, 128, SEEK_CUR));
            ssize_t n = read(fd, bytes, PART);
            CHECK(n >= 0, "read: %s", strerror(errno));
            for (size_t i = 0; i + 8 <= (size_t)n; i += 8) {
                uint64_t word;
                memcpy(&word, bytes + i, 8);
                CHECK(word == round_value, "a read of round %llu sees %llu", (unsigned long long)round_value,
                      (unsigned long long)word);
            }
            if (n < PART)
                break;
        }
        pthread_barrier_wait(&barrier);
    }
    free(bytes);
    return NULL;
}

static void reads(void)
{
    len = 2 * MIB;
    fd = make_file(path, "", 1, len);
    at = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    SYS(madvise(at, len, MADV_RANDOM));
    pthread_t ids[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    over = false;
    for (uintptr_t i = 0; i < THREADS; i++)
        SPAWN(&ids[i], read_parts, i ? NULL : (void *)1);
    for (round_value = 1; round_value < 30; round_value++) {
        for (size_t i = 0; i < len / 8; i++)
            ((volatile uint64_t *)at)[i] = round_value;
        SYS(lseek(fd, 0, SEEK_SET));
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
    }
    over = true;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&barrier);
    SYS(munmap(at, len));
    SYS(close(fd));
}

/* ---- appends beside cuts: what was appended is where the file says ---- */

static void *append(void *argument)
{
    uint64_t thread = (uintptr_t)argument;
    for (uint64_t i = 0; i < 400; i++) {
        uint8_t made[APPEND];
        pattern_fill(thread + 1, i * APPEND, made, APPEND);
        CHECK(write(fd, made, APPEND) == APPEND, "write: %s", strerror(errno));
    }
    done_records++;
    return NULL;
}

static void appends(void)
{
    size_t head = 2 * MIB;
    SYS(close(make_file(path, "", 1, head)));
    fd = (int)SYS(open(path, O_RDWR | O_APPEND));
    len = head + 4 * MIB;
    at = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    pthread_t ids[THREADS];
    done_records = 0;
    for (uintptr_t i = 0; i < THREADS; i++)
        SPAWN(&ids[i], append, (void *)i);
    while (done_records < THREADS) {
        at[head - 100] = 0x5a;
        SYS(ftruncate(fd, (off_t)head));
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    SYS(ftruncate(fd, (off_t)head));
    append((void *)0);
    size_t end = file_size(fd);
    CHECK(end == head + 400 * APPEND, "the end is at %zu", end);
    uint8_t *bytes = malloc(end);
    SYS(msync(at, end, MS_SYNC));
    pread_all(fd, bytes, end, 0);
    CHECK(!memcmp(bytes, at, end), "file and mapping differ");
    pattern_check(1, 0, bytes + head, 400 * APPEND, "what was appended");
    free(bytes);
    SYS(munmap(at, len));
    SYS(close(fd));
}

/* ---- a file that is mapped for the first time while it is written ---- */

static _Atomic unsigned ready;

static void *write_once(void *argument)
{
    unsigned round = (unsigned)(uintptr_t)argument;
    uint8_t byte = 0x5a;
    off_t end = (off_t)len - 1, zero = 0;
    ready++;
    while (ready < 2)
        ;
    for (volatile unsigned spin = 0; spin < round % 64 * 200; spin++)
        ;
    switch (round % 4) {
    case 0:
        CHECK(pwrite(fd, &byte, 1, end) == 1, "pwrite: %s", strerror(errno));
        break;
    case 1:
        CHECK(write(fd, &byte, 1) == 1, "write: %s", strerror(errno));
        break;
    case 2:
        CHECK(copy_file_range(source, &zero, fd, &end, 1, 0) == 1, "copy_file_range: %s", strerror(errno));
        break;
    default:
        CHECK(sendfile(fd, source, &zero, 1) == 1, "sendfile: %s", strerror(errno));
    }
    return NULL;
}

static void first_mappings(unsigned rounds)
{
    len = 2 * MIB;
    source = make_file(path, ".source", 1, 0);
    CHECK(write(source, "\x5a", 1) == 1, "write: %s", strerror(errno));
    /* One file is managed throughout. */
    int other = make_file(path, ".other", 1, len);
    volatile uint8_t *held = map_file(other, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    held[0] = 1;
    for (unsigned round = 0; round < rounds; round++) {
        char suffix[20];
        snprintf(suffix, sizeof suffix, ".%u", round);
        fd = make_file(path, suffix, 1, 0);
        SYS(ftruncate(fd, (off_t)len));
        SYS(lseek(fd, (off_t)len - 1, SEEK_SET));
        ready = 0;
        pthread_t id;
        SPAWN(&id, write_once, (void *)(uintptr_t)round);
        ready++;
        while (ready < 2)
            ;
        volatile uint8_t *seen = map_file(fd, len, PROT_READ, MAP_SHARED, 0);
        uint8_t early = seen[len - 1];
        pthread_join(id, NULL);
        CHECK(seen[len - 1] == 0x5a, "round %u: a mapping shows %#x (%#x before), not what was written",
              round, seen[len - 1], early);
        SYS(munmap((void *)seen, len));
        SYS(close(fd));
        char name[4096];
        snprintf(name, sizeof name, "%s%s", path, suffix);
        SYS(unlink(name));
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: cursors FILE CASE ROUNDS");
    path = argv[1];
    unsigned rounds = (unsigned)atoi(argv[3]);
    if (!strcmp(argv[2], "first_mappings"))
        first_mappings(rounds);
    for (unsigned i = 0; i < rounds; i++) {
        if (!strcmp(argv[2], "writes"))
            writes();
        else if (!strcmp(argv[2], "reads"))
            reads();
        else if (!strcmp(argv[2], "appends"))
            appends();
    }
    printf("ok %s\n", argv[2]);
    return 0;
}
