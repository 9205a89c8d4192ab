/* What stands between stores and their file, besides the device.
 *   disk FILE SEED fsize      a soft RLIMIT_FSIZE inside the file: stores are not subject to it
 *   disk FILE SEED many       more mapped files than the program may have descriptors
 *   disk FILE SEED raw        parts of a mapping are unmapped by a raw system call; prints what fsync says
 *                             then, twice
 *   disk FILE SEED times      others write, and put the time of the file back
 *   disk FILE SEED own        only the program itself changes the file, in every way, for some seconds */
#include "common.h"
#include "unseen.h"
#include <sys/resource.h>
#include <sys/syscall.h>

static const char *path;
static uint64_t seed;
static const size_t LEN = 4 * 1024 * 1024 + 1234;
static volatile sig_atomic_t xfsz;

static void count_xfsz(int sig)
{
    (void)sig;
    xfsz++;
}

static void limit_files_to(rlim_t bytes)
{
    struct rlimit limit;
    SYS(getrlimit(RLIMIT_FSIZE, &limit));
    limit.rlim_cur = bytes;
    SYS(setrlimit(RLIMIT_FSIZE, &limit));
}

static void fsize_at(rlim_t limit)
{
    limit_files_to(RLIM_INFINITY);
    int fd = make_file(path, "", seed, LEN);
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0), *bytes = malloc(LEN);
    limit_files_to(limit);
    pattern_fill(seed + 1, 0, base, LEN);
    SYS(msync(base, LEN, MS_SYNC));
    pread_all(fd, bytes, LEN, 0);
    pattern_check(seed + 1, 0, bytes, LEN, "stores beyond the limit, read");
    base[LEN - 1] ^= 1;
    base[LEN / 2] ^= 1;
    SYS(fsync(fd));
    CHECK(xfsz == 0, "a store has raised SIGXFSZ");
    /* The program's own writes are. */
    SYS_FAILS(pwrite(fd, "x", 1, (off_t)(LEN - 1)), EFBIG);
    CHECK(xfsz == 1, "a write beyond the limit has raised %d SIGXFSZ", (int)xfsz);
    xfsz = 0;
    SYS(munmap(base, LEN));
    SYS(close(fd));
    fd = (int)SYS(open(path, O_RDONLY));
    CHECK(file_size(fd) == LEN, "the file has %llu bytes", (unsigned long long)file_size(fd));
    pread_all(fd, bytes, LEN, 0);
    bytes[LEN - 1] ^= 1;
    bytes[LEN / 2] ^= 1;
    pattern_check(seed + 1, 0, bytes, LEN, "stores beyond the limit, read afterwards");
    SYS(close(fd));
    free(bytes);
}

static void fsize(void)
{
    struct sigaction action = {.sa_handler = count_xfsz};
    SYS(sigaction(SIGXFSZ, &action, NULL));
    fsize_at(1 << 20);
    fsize_at(2 * 1024 * 1024 + 1000);
    fsize_at(0);
    limit_files_to(RLIM_INFINITY);
}

static void many(void)
{
    enum { FILES = 600 };
    static const size_t len = 64 * 1024;
    static uint8_t *bases[FILES];
    struct rlimit limit, after;
    char name[4096];
    uint8_t bytes[64];
    SYS(getrlimit(RLIMIT_NOFILE, &limit));
    CHECK(limit.rlim_max >= 4096, "the hard limit is %llu", (unsigned long long)limit.rlim_max);
    limit.rlim_cur = 256;
    SYS(setrlimit(RLIMIT_NOFILE, &limit));
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, ".%d", i);
        int fd = make_file(path, name, seed + (uint64_t)i, len);
        bases[i] = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        SYS(close(fd));
        bases[i][i] ^= 0xff;
    }
    SYS(getrlimit(RLIMIT_NOFILE, &after));
    CHECK(after.rlim_cur == 256 && after.rlim_max == limit.rlim_max, "the limit is %llu",
          (unsigned long long)after.rlim_cur);
    /* Lowered below what is open already. */
    limit.rlim_cur = 20;
    SYS(setrlimit(RLIMIT_NOFILE, &limit));
    for (int i = 0; i < FILES; i++) {
        bases[i][i] ^= 0xff;
        pattern_check(seed + (uint64_t)i, 0, bases[i], len, "a mapped file");
        bases[i][i] ^= 0xff;
        snprintf(name, sizeof name, "%s.%d", path, i);
        int fd = (int)SYS(open(name, O_RDWR));
        uint8_t *again = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        CHECK(again[i] == bases[i][i], "file %d differs in its two mappings", i);
        again[i + 1] ^= 0xff;
        CHECK(again[i + 1] == bases[i][i + 1], "file %d differs in its two mappings", i);
        pread_all(fd, bytes, 1, (uint64_t)i);
        CHECK(bytes[0] == bases[i][i], "read(2) of file %d gives %#x", i, bytes[0]);
        SYS(munmap(again, len));
        SYS(munmap(bases[i], len));
        SYS(close(fd));
    }
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "%s.%d", path, i);
        int fd = (int)SYS(open(name, O_RDONLY));
        pread_all(fd, bytes, 2, (uint64_t)i);
        for (int j = 0; j < 2; j++)
            CHECK((bytes[j] ^ pattern_byte(seed + (uint64_t)i, (uint64_t)(i + j))) == 0xff,
                  "file %d has lost a store", i);
        SYS(close(fd));
        SYS(unlink(name));
    }
    SYS(getrlimit(RLIMIT_NOFILE, &after));
    CHECK(after.rlim_cur == 20 && after.rlim_max == limit.rlim_max, "the limit is %llu",
          (unsigned long long)after.rlim_cur);
}

/* Stores to what the raw call unmaps may be lost; all that the disk has is read, and other stores are
 * there. */
static void raw(void)
{
    int fd = make_file(path, "", seed, LEN);
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0), *bytes = malloc(LEN);
    pattern_check(seed, 0, base, LEN, "before");
    for (size_t at = 0; at < LEN; at += PAGE)
        base[at] = pattern_byte(seed, at) ^ 0xff;
    static const size_t gone[][2] = {{5, 6}, {64, 80}, {300, 812}};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        SYS(UNSEEN(SYS_munmap, base + gone[i][0] * PAGE, (gone[i][1] - gone[i][0]) * PAGE));
    pread_all(fd, bytes, LEN, 0);
    for (size_t at = 0; at < LEN; at += PAGE) {
        bool lost = false;
        for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
            lost |= at / PAGE >= gone[i][0] && at / PAGE < gone[i][1];
        uint8_t stored = pattern_byte(seed, at) ^ 0xff;
        CHECK(bytes[at] == stored || (lost && bytes[at] == pattern_byte(seed, at)),
              "page %zu begins with %#x", at / PAGE, bytes[at]);
        bytes[at] = pattern_byte(seed, at);
    }
    pattern_check(seed, 0, bytes, LEN, "the rest of the pages");
    for (int i = 0; i < 2; i++)
        printf("fsync: %s\n", fsync(fd) == 0 ? "success" : strerrorname_np(errno));
    /* What is mapped still can be used. */
    pread_all(fd, bytes, LEN, 0);
    CHECK(!memcmp(bytes, base, 5 * PAGE) && !memcmp(bytes + 6 * PAGE, base + 6 * PAGE, 58 * PAGE),
          "the mapping and read(2) differ");
    uint8_t *again = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    CHECK(!memcmp(bytes, again, LEN), "a new mapping and read(2) differ");
    SYS(munmap(again, LEN));
    SYS(close(fd));
}

static void put_back(int fd, const struct stat *before)
{
    struct timespec times[2] = {before->st_atim, before->st_mtim};
    struct stat after;
    SYS(futimens(fd, times));
    SYS(fstat(fd, &after));
    CHECK(after.st_mtim.tv_sec == before->st_mtim.tv_sec && after.st_mtim.tv_nsec == before->st_mtim.tv_nsec,
          "the time stayed");
}

static void times(void)
{
    int fd = make_file(path, "", seed, LEN);
    struct stat before;
    SYS(fsync(fd));
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0), *bytes = malloc(LEN);
    for (int turn = 1; turn <= 2; turn++) {
        pattern_check(seed + (uint64_t)turn - 1, 0, base, LEN, "before");
        SYS(fstat(fd, &before));
        pattern_fill(seed + (uint64_t)turn, 0, bytes, LEN);
        /* As another process would: nothing of libc's that is told of it. */
        CHECK(UNSEEN(SYS_pwrite64, fd, bytes, LEN, (off_t)0) == (long)LEN, "pwrite: %s", strerror(errno));
        put_back(fd, &before);
        if (turn == 1) {
            /* Who maps it afterwards sees it at once. */
            uint8_t *again = map_file(fd, LEN, PROT_READ, MAP_SHARED, 0);
            pattern_check(seed + 1, 0, again, LEN, "a new mapping");
            SYS(munmap(again, LEN));
        } else {
            /* Who has mapped it before sees it soon. */
            for (double end = now_seconds() + 60; memcmp(base, bytes, LEN) && now_seconds() < end;)
                sleep_ms(20);
        }
        pattern_check(seed + (uint64_t)turn, 0, base, LEN, "the mapping");
    }
    /* Rights, names and links: nothing of it is a loss. */
    base[77] ^= 1;
    SYS(fchmod(fd, 0600));
    SYS(fsync(fd));
    pread_all(fd, bytes, 100, 0);
    CHECK(bytes[77] == (pattern_byte(seed + 2, 77) ^ 1), "a store is lost");
    SYS(munmap(base, LEN));
    SYS(close(fd));
}

static void own(void)
{
    int fd = make_file(path, "", seed, LEN);
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0), bytes[5000];
    pattern_check(seed, 0, base, LEN, "before");
    memset(bytes, 0x44, sizeof bytes);
    for (double end = now_seconds() + 3.5; now_seconds() < end; sleep_ms(50)) {
        base[rng_next(&(struct rng){(uint64_t)(now_seconds() * 1e6)}) % LEN] = 7;
        pwrite_all(fd, bytes, sizeof bytes, 777777);
        SYS(msync(base, LEN, MS_ASYNC));
        SYS(ftruncate(fd, (off_t)(LEN + 10 * PAGE)));
        SYS(ftruncate(fd, (off_t)LEN));
        SYS(fsync(fd));
    }
    SYS(munmap(base, LEN));
    SYS(close(fd));
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: disk FILE SEED MODE");
    path = argv[1];
    seed = strtoull(argv[2], NULL, 0);
    probe_install();
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"fsize", fsize}, {"many", many}, {"raw", raw}, {"times", times}, {"own", own}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(argv[3], modes[i].name)) {
            modes[i].run();
            printf("ok %s\n", argv[3]);
            return 0;
        }
    FAIL("no mode %s", argv[3]);
}
