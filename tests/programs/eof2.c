/* What is stored beyond the end of a file, in its last page, is in no file: it is zero once the file grows,
 * for mappings and for read(2), whichever call made it grow and whatever became of the page before.
 *   eof2 FILE SEED      FILE is made anew */
#include "common.h"
#include "unseen.h"
#include <sys/sendfile.h>
#include <sys/syscall.h>

static const char *path;
static uint64_t seed;
static const size_t LEN = 2 * 1024 * 1024;
static const size_t SIZE = 200 * 4096 + 1234; /* not a page's multiple */
static const size_t END = 201 * 4096;

enum state { DIRTY, WRITTEN, READ, NOT_CACHED, STATES };
static const char *const STATE_NAMES[] = {"dirty", "written back", "read before", "not cached"};
enum way {
    FTRUNCATE, TRUNCATE, PWRITE_FAR, PWRITE_HERE, WRITE_APPEND, WRITEV, FALLOCATE, COPY_RANGE, SENDFILE,
    ZERO_RANGE, SHRINK, WAYS
};
static const char *const WAY_NAMES[] = {
    "ftruncate", "truncate", "pwrite far beyond", "pwrite in the last page", "append", "pwritev", "fallocate",
    "copy_file_range", "sendfile", "FALLOC_FL_ZERO_RANGE", "ftruncate twice"};

/* The file as it must be afterwards. */
static uint8_t *expected;
static size_t new_size;

static void source(int *fd)
{
    *fd = make_file(path, ".from", seed + 1, 64 * KIB);
}

static void wrote(size_t at, const void *bytes, size_t len)
{
    memcpy(expected + at, bytes, len);
    if (at + len > new_size)
        new_size = at + len;
}

static bool grow(enum way way, int fd)
{
    uint8_t bytes[600];
    int from;
    memset(bytes, 0x61, sizeof bytes);
    new_size = SIZE;
    switch (way) {
    case FTRUNCATE:
        new_size = SIZE + 10 * PAGE;
        SYS(ftruncate(fd, (off_t)new_size));
        break;
    case TRUNCATE:
        new_size = SIZE + 100;
        SYS(truncate(path, (off_t)new_size));
        break;
    case PWRITE_FAR:
        pwrite_all(fd, bytes, sizeof bytes, SIZE + 20 * PAGE);
        wrote(SIZE + 20 * PAGE, bytes, sizeof bytes);
        break;
    case PWRITE_HERE:
        pwrite_all(fd, bytes, 100, SIZE + 500);
        wrote(SIZE + 500, bytes, 100);
        break;
    case WRITE_APPEND: {
        int append = (int)SYS(open(path, O_WRONLY | O_APPEND));
        CHECK(write(append, bytes, sizeof bytes) == sizeof bytes, "write: %s", strerror(errno));
        SYS(close(append));
        wrote(SIZE, bytes, sizeof bytes);
        break;
    }
    case WRITEV: {
        struct iovec parts[2] = {{bytes, 100}, {bytes, 200}};
        CHECK(pwritev(fd, parts, 2, (off_t)(END + 50)) == 300, "pwritev: %s", strerror(errno));
        wrote(END + 50, bytes, 300);
        break;
    }
    case FALLOCATE:
        new_size = SIZE + 3 * PAGE;
        SYS(fallocate(fd, 0, (off_t)(SIZE + PAGE), 2 * (off_t)PAGE));
        break;
    case COPY_RANGE: {
        uint8_t copied[5000];
        loff_t in = 0, out = (loff_t)(SIZE + 700);
        source(&from);
        CHECK(copy_file_range(from, &in, fd, &out, sizeof copied, 0) == sizeof copied, "copy_file_range: %s",
              strerror(errno));
        pread_all(from, copied, sizeof copied, 0);
        SYS(close(from));
        wrote(SIZE + 700, copied, sizeof copied);
        break;
    }
    case SENDFILE: {
        uint8_t copied[5000];
        off_t in = 0;
        source(&from);
        SYS(lseek(fd, (off_t)(SIZE + 900), SEEK_SET));
        CHECK(sendfile(fd, from, &in, sizeof copied) == sizeof copied, "sendfile: %s", strerror(errno));
        pread_all(from, copied, sizeof copied, 0);
        SYS(close(from));
        wrote(SIZE + 900, copied, sizeof copied);
        break;
    }
    case ZERO_RANGE:
        if (fallocate(fd, FALLOC_FL_ZERO_RANGE, (off_t)(SIZE + 1000), 3 * (off_t)PAGE) != 0)
            return false;
        new_size = SIZE + 1000 + 3 * PAGE;
        break;
    case SHRINK:
        SYS(ftruncate(fd, (off_t)(SIZE - 1000)));
        memset(expected + SIZE - 1000, 0, 1000);
        SYS(ftruncate(fd, (off_t)(SIZE + 5000)));
        new_size = SIZE + 5000;
        break;
    case WAYS:
        break;
    }
    return true;
}

static void same(const uint8_t *bytes, enum way way, enum state state, const char *who)
{
    for (size_t at = 0; at < new_size; at++)
        CHECK(bytes[at] == expected[at], "%s, the page %s: %s sees %#x at %zu (the end was at %zu), not %#x",
              WAY_NAMES[way], STATE_NAMES[state], who, bytes[at], at, SIZE, expected[at]);
}

static void one(enum way way, enum state state)
{
    int fd = make_file(path, "", seed, SIZE);
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    uint8_t *bytes = malloc(LEN);
    memset(expected, 0, LEN);
    pattern_fill(seed, 0, expected, SIZE);
    if (state != NOT_CACHED) {
        memset(base + SIZE - 10, 0xe1, 10);
        memset(expected + SIZE - 10, 0xe1, 10);
        memset(base + SIZE, 0xee, END - SIZE);
    }
    if (state == WRITTEN || state == READ)
        SYS(msync(base, LEN, MS_SYNC));
    if (state == READ) {
        zero_check(base + SIZE, END - SIZE, "beyond the end after msync");
        pread_all(fd, bytes, SIZE, 0);
    }
    if (grow(way, fd)) {
        CHECK(file_size(fd) == new_size, "%s: the file has %llu bytes, not %zu", WAY_NAMES[way],
              (unsigned long long)file_size(fd), new_size);
        same(base, way, state, "the mapping");
        pread_all(fd, bytes, new_size, 0);
        same(bytes, way, state, "read(2)");
        /* What is stored now is inside, and stays. */
        memset(base + SIZE + 3, 0x77, 50);
        memset(expected + SIZE + 3, 0x77, 50);
        pread_all(fd, bytes, new_size, 0);
        same(bytes, way, state, "read(2) after a store");
        SYS(fsync(fd));
        same(base, way, state, "the mapping after fsync");
    }
    free(bytes);
    SYS(munmap(base, LEN));
    SYS(close(fd));
}

static void every_way(void)
{
    expected = malloc(LEN);
    for (int way = 0; way < WAYS; way++)
        for (int state = 0; state < STATES; state++)
            one((enum way)way, (enum state)state);
}

/* Two threads make the file longer, record by record, and store to what they have written: both stay. */
static struct {
    int fd;
    uint8_t *base;
    _Atomic size_t next;
} shared;

static void *record(void *argument)
{
    uint8_t bytes[128];
    memset(bytes, 0x80 + (int)(intptr_t)argument, sizeof bytes);
    for (int i = 0; i < 1000; i++) {
        size_t at = atomic_fetch_add(&shared.next, 1) * sizeof bytes;
        pwrite_all(shared.fd, bytes, sizeof bytes, at);
        bytes_check(shared.base + at, bytes[0], sizeof bytes, "what was written");
        memset(shared.base + at, bytes[0] ^ 0x40, 64);
    }
    return NULL;
}

static void records(void)
{
    pthread_t threads[2];
    shared.fd = make_file(path, "", seed, 0);
    shared.base = map_file(shared.fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    for (intptr_t i = 0; i < 2; i++)
        SPAWN(&threads[i], record, (void *)i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    SYS(fsync(shared.fd));
    uint8_t bytes[128];
    int of[2] = {0, 0};
    for (size_t at = 0; at < file_size(shared.fd); at += sizeof bytes) {
        pread_all(shared.fd, bytes, sizeof bytes, at);
        int who = bytes[64] - 0x80;
        CHECK(who == 0 || who == 1, "the record at %zu begins with %#x", at, bytes[64]);
        of[who]++;
        bytes_check(bytes, (uint8_t)((0x80 + who) ^ 0x40), 64, "stored after a write");
        bytes_check(bytes + 64, (uint8_t)(0x80 + who), 64, "written");
    }
    CHECK(of[0] == 1000 && of[1] == 1000, "%d and %d records", of[0], of[1]);
    SYS(munmap(shared.base, LEN));
    SYS(close(shared.fd));
}

/* Others make it longer, so that no call of libc's says so: what they have written in the last page is not
 * overwritten by the zeros that were there. */
static void growth_by_others(void)
{
    int fd = make_file(path, "", seed, SIZE);
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0), bytes[PAGE];
    base[SIZE - 1] = 0x11;
    memset(bytes, 0x22, sizeof bytes);
    CHECK(UNSEEN(SYS_pwrite64, fd, bytes, (size_t)100, (off_t)SIZE) == 100, "pwrite: %s", strerror(errno));
    base[SIZE - 2] = 0x12;
    base[SIZE + 200] = 0x33; /* beyond the end: lost, or kept if it counts as a hole */
    SYS(msync(base, LEN, MS_SYNC));
    pread_all(fd, bytes, 102, SIZE - 2);
    CHECK(bytes[0] == 0x12 && bytes[1] == 0x11, "stores before the end are %#x %#x", bytes[0], bytes[1]);
    bytes_check(bytes + 2, 0x22, 100, "what others have appended");
    CHECK(file_size(fd) == SIZE + 100, "the file has %llu bytes", (unsigned long long)file_size(fd));
    bytes_check(base + SIZE, 0x22, 100, "what others have appended, in the mapping");
    SYS(munmap(base, LEN));
    SYS(close(fd));
}

/* Others make it shorter, and longer again: what was stored beyond is not in the file. */
static void cut_by_others(void)
{
    int fd = make_file(path, "", seed, SIZE);
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    uint8_t *bytes = malloc(LEN);
    memset(base, 0x5a, SIZE);
    SYS(UNSEEN(SYS_ftruncate, fd, (off_t)(5 * PAGE + 7)));
    SYS(msync(base, PAGE, MS_SYNC));
    CHECK(file_size(fd) == 5 * PAGE + 7, "write-back has made the file %llu bytes long",
          (unsigned long long)file_size(fd));
    SYS(UNSEEN(SYS_ftruncate, fd, (off_t)(50 * PAGE)));
    SYS(msync(base, LEN, MS_SYNC));
    SYS(fsync(fd));
    pread_all(fd, bytes, 50 * PAGE, 0);
    bytes_check(bytes, 0x5a, 5 * PAGE + 7, "stores before the cut");
    zero_check(bytes + 5 * PAGE + 7, 45 * PAGE - 7, "behind the cut");
    bytes_check(base, 0x5a, 5 * PAGE + 7, "stores before the cut, in the mapping");
    zero_check(base + 5 * PAGE + 7, 45 * PAGE - 7, "behind the cut, in the mapping");
    free(bytes);
    SYS(munmap(base, LEN));
    SYS(close(fd));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: eof2 FILE SEED");
    path = argv[1];
    seed = strtoull(argv[2], NULL, 0);
    PART(every_way);
    PART(records);
    PART(growth_by_others);
    PART(cut_by_others);
    return 0;
}
