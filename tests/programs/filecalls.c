/* Calls on files that are mapped and stored to: each sees the stores, is seen by the mapping, and fails as it
 * should.
 *   filecalls FILE CASE     FILE, and files whose names begin with it, are made anew */
#include "common.h"
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>

#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif

static const char *path;
static const size_t LEN = 4 * 1024 * 1024;
static const uint64_t SEED = 11;

/* FILE with `suffix`: the pattern, and a mapping of all of it. */
struct mapped {
    int fd;
    uint8_t *at;
};

static struct mapped mapped_file(const char *suffix)
{
    int fd = make_file(path, suffix, SEED, LEN);
    return (struct mapped){fd, map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0)};
}

static void unmap(struct mapped file)
{
    SYS(munmap(file.at, LEN));
    SYS(close(file.fd));
}

/* ---- bad pointers and impossible lengths ---- */

/* What the compiler warns of is what is tested. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"

/* The call must fail; which of the two the kernel says depends on what it looks at first. */
#define FAILS_WITH_EITHER(call)                                                                              \
    do {                                                                                                     \
        errno = 0;                                                                                           \
        long either = (long)(call);                                                                          \
        CHECK(either == -1 && (errno == EFAULT || errno == EINVAL), "%s gave %ld: %s", #call, either,        \
              strerror(errno));                                                                              \
    } while (0)

static void bad_vectors(int fd, uint8_t *buffer)
{
    struct iovec *bad = (struct iovec *)64;
    SYS_FAILS(readv(fd, bad, 2), EFAULT);
    SYS_FAILS(preadv(fd, bad, 2, 0), EFAULT);
    SYS_FAILS(preadv2(fd, bad, 2, 0, 0), EFAULT);
    SYS_FAILS(preadv2(fd, bad, 2, -1, 0), EFAULT);
    SYS_FAILS(writev(fd, bad, 2), EFAULT);
    SYS_FAILS(pwritev(fd, bad, 2, 0), EFAULT);
    SYS_FAILS(pwritev2(fd, bad, 2, 0, 0), EFAULT);
    SYS_FAILS(pwritev2(fd, bad, 2, -1, 0), EFAULT);
    struct iovec part = {buffer, 10};
    SYS_FAILS(preadv(fd, &part, -1, 0), EINVAL);
    SYS_FAILS(preadv(fd, &part, 1025, 0), EINVAL);
    SYS_FAILS(pwritev(fd, &part, -1, 0), EINVAL);
    SYS_FAILS(pwritev(fd, &part, 1025, 0), EINVAL);
    CHECK(preadv(fd, &part, 0, 0) == 0, "no parts");
    CHECK(pwritev(fd, &part, 0, 0) == 0, "no parts");
    struct iovec parts[2] = {{buffer, 10}, {buffer, (size_t)1 << 63}};
    SYS_FAILS(preadv(fd, parts, 2, 0), EINVAL);
    SYS_FAILS(pwritev(fd, parts, 2, 0), EINVAL);
    parts[1] = (struct iovec){(void *)64, 10};
    CHECK(preadv(fd, parts, 2, 0) == 10, "a bad second part: %s", strerror(errno));
    parts[0] = (struct iovec){(void *)64, 10};
    SYS_FAILS(preadv(fd, parts, 2, 0), EFAULT);
    SYS_FAILS(pwritev(fd, parts, 2, 0), EFAULT);
}

static void bad_lengths(int fd, uint8_t *buffer)
{
    FAILS_WITH_EITHER(pread(fd, buffer, SIZE_MAX, 0));
    FAILS_WITH_EITHER(pwrite(fd, buffer, SIZE_MAX, 0));
    FAILS_WITH_EITHER(pread(fd, buffer, (size_t)1 << 63, 0));
    FAILS_WITH_EITHER(read(fd, buffer, SIZE_MAX));
    FAILS_WITH_EITHER(write(fd, buffer, SIZE_MAX));
    SYS_FAILS(pread(fd, buffer, 10, -1), EINVAL);
    SYS_FAILS(pwrite(fd, buffer, 10, -1), EINVAL);
    SYS_FAILS(pread(fd, (void *)64, 10, 0), EFAULT);
    SYS_FAILS(pwrite(fd, (void *)64, 10, 0), EFAULT);
    SYS_FAILS(write(fd, (void *)64, 10), EFAULT);
}

static void bad_pointers(void)
{
    struct mapped file = mapped_file(""), other = mapped_file(".other");
    uint8_t *outside = malloc(3 * PAGE);
    for (int dirty = 0; dirty < 2; dirty++) {
        if (dirty)
            file.at[100] = 1;
        bad_vectors(file.fd, outside);
        bad_vectors(file.fd, other.at + 100);
        bad_lengths(file.fd, outside);
        bad_lengths(file.fd, other.at + 100);
    }
    file.at[100] = pattern_byte(SEED, 100);
    off_t *bad = (off_t *)64, good = 0;
    SYS_FAILS(sendfile(other.fd, file.fd, bad, 10), EFAULT);
    SYS_FAILS(copy_file_range(file.fd, bad, other.fd, NULL, 10, 0), EFAULT);
    SYS_FAILS(copy_file_range(file.fd, &good, other.fd, bad, 10, 0), EFAULT);
    int pipes[2];
    SYS(pipe(pipes));
    CHECK(write(pipes[1], "0123456789", 10) == 10, "a pipe takes ten bytes");
    SYS_FAILS(splice(pipes[0], NULL, other.fd, bad, 10, 0), EFAULT);
    SYS_FAILS(splice(file.fd, bad, pipes[1], NULL, 10, 0), EFAULT);
    /* Offsets that can be read but not written: the bytes are there all the same. */
    off_t *constant = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SYS_FAILS(splice(pipes[0], NULL, other.fd, constant, 10, 0), EFAULT);
    CHECK(!memcmp(other.at, "0123456789", 10), "the bytes of a splice whose offset cannot be stored");
    uint8_t *plain = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mincore(file.at, 16 * PAGE, plain) == 0, "mincore: %s", strerror(errno));
    SYS_FAILS(mincore(file.at, 16 * PAGE, (void *)64), EFAULT);
    SYS_FAILS(mincore(file.at, 16 * PAGE, (void *)constant), EFAULT);
    /* Parts whose description is managed memory that nobody has touched. */
    struct iovec *described = (struct iovec *)(other.at + 40 * PAGE + 8);
    struct iovec parts[2] = {{outside, 100}, {outside + 100, 5000}};
    pwrite_all(other.fd, parts, sizeof parts, 40 * PAGE + 8);
    CHECK(preadv(file.fd, described, 2, 77) == 5100, "parts in managed memory: %s", strerror(errno));
    pattern_check(SEED, 77, outside, 5100, "parts in managed memory");
    pattern_check(SEED, 0, file.at, LEN, "after all that failed");
    unmap(file);
    unmap(other);
}

/* ---- the names that open with O_TRUNC ---- */

int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
int __open(const char *, int, ...);
int __open64(const char *, int, ...);

static int by_handle(const char *name)
{
    struct file_handle *handle = malloc(sizeof *handle + MAX_HANDLE_SZ);
    int mount;
    handle->handle_bytes = MAX_HANDLE_SZ;
    int dir = (int)SYS(open(".", O_RDONLY)), fd = -1;
    if (name_to_handle_at(AT_FDCWD, name, handle, &mount, 0) == 0) {
        int at = open(name, O_RDONLY);
        fd = open_by_handle_at(at, handle, O_WRONLY | O_TRUNC);
        SYS(close(at));
    }
    SYS(close(dir));
    free(handle);
    return fd;
}

static int open_cut(const char *name, int way)
{
    int flags = O_WRONLY | O_TRUNC;
    switch (way) {
    case 0: return open(name, flags);
    case 1: return open64(name, O_RDWR | O_TRUNC);
    case 2: return openat(AT_FDCWD, name, flags | O_CREAT, 0600);
    case 3: return openat64(AT_FDCWD, name, flags);
    case 4: return creat(name, 0600);
    case 5: return creat64(name, 0600);
    case 6: return __open(name, flags);
    case 7: return __open64(name, flags);
    case 8: return __open_2(name, flags);
    case 9: return __open64_2(name, flags);
    case 10: return __openat_2(AT_FDCWD, name, flags);
    case 11: return __openat64_2(AT_FDCWD, name, flags);
    case 12: return by_handle(name);
    case 13: {
        int cut = (int)SYS(open(name, O_RDONLY | O_TRUNC)), fd = open(name, O_WRONLY);
        SYS(close(cut));
        return fd;
    }
    default: {
        SYS(truncate(name, 0));
        return open(name, O_WRONLY);
    }
    }
}

static void cuts(void)
{
    uint8_t *bytes = malloc(LEN);
    for (int way = 0; way <= 14; way++)
        for (int keeps = 0; keeps < 2; keeps++) {
            struct mapped file = mapped_file("");
            int reader = (int)SYS(open(path, O_RDONLY));
            for (size_t at = 0; at < LEN; at += PAGE)
                file.at[at + 5] ^= 1;
            if (!keeps)
                unmap(file);
            int fd = open_cut(path, way);
            if (fd < 0 && way == 12) {
                fprintf(stderr, "skip: files cannot be opened by handle here\n");
            } else {
                CHECK(fd >= 0, "way %d: %s", way, strerror(errno));
                CHECK(file_size(reader) == 0, "way %d leaves %llu bytes", way,
                      (unsigned long long)file_size(reader));
                pattern_fill(SEED + 1, 0, bytes, 50000);
                for (size_t done = 0; done < 50000; done += 10000)
                    CHECK(write(fd, bytes + done, 10000) == 10000, "write: %s", strerror(errno));
                if (keeps)
                    pattern_check(SEED + 1, 0, file.at, 50000,
                                  "a mapping of a file that was cut and written");
                SYS(close(fd));
                sync();
                CHECK(file_size(reader) == 50000, "way %d: %llu bytes", way,
                      (unsigned long long)file_size(reader));
                pread_all(reader, bytes, 50000, 0);
                pattern_check(SEED + 1, 0, bytes, 50000, "a file that was cut and written");
                /* Longer again: what was there before is not. */
                SYS(truncate(path, (off_t)LEN));
                if (keeps)
                    zero_check(file.at + 50000, LEN - 50000, "a mapping of a file that is longer again");
                sync();
                pread_all(reader, bytes, LEN, 0);
                pattern_check(SEED + 1, 0, bytes, 50000, "a file that is longer again");
                zero_check(bytes + 50000, LEN - 50000, "a file that is longer again");
            }
            if (keeps)
                unmap(file);
            SYS(close(reader));
        }
    free(bytes);
}

/* ---- holes ---- */

static void holes(void)
{
    int fd = make_file(path, "", SEED, 0);
    size_t len = 16 * MIB;
    SYS(ftruncate(fd, (off_t)len));
    uint8_t *at = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    SYS_FAILS(lseek(fd, 0, SEEK_DATA), ENXIO);
    for (unsigned i = 1; i < 15; i++) {
        size_t place = i * MIB + i * 777;
        at[place] = 0x5a;
        /* The kernel may make more than the page: as much as it reads or allocates at once. */
        off_t data = lseek(fd, (off_t)(i * MIB - MIB / 2), SEEK_DATA), hole = lseek64(fd, data, SEEK_HOLE);
        off_t page = (off_t)(place / PAGE * PAGE);
        CHECK(data > page - (off_t)MIB / 4 && data <= page, "data at %#llx, not %#llx", (long long)data,
              (long long)page);
        CHECK(hole > page && hole < page + (off_t)MIB / 4, "a hole at %#llx, not behind %#llx",
              (long long)hole, (long long)page);
    }
    at[12345] = 0x5a;
    struct {
        struct fiemap map;
        struct fiemap_extent extents[64];
    } map = {.map = {.fm_length = ~0ull, .fm_extent_count = 64}};
    if (ioctl(fd, FS_IOC_FIEMAP, &map) == 0)
        CHECK(map.map.fm_mapped_extents >= 15 && map.extents[0].fe_logical <= 12345,
              "%u extents, the first at %llu", map.map.fm_mapped_extents,
              (unsigned long long)map.extents[0].fe_logical);
    else
        fprintf(stderr, "skip: FIEMAP is refused here: %s\n", strerror(errno));
    long flags;
    SYS(ioctl(fd, FS_IOC_GETFLAGS, &flags));
    CHECK(lseek(fd, 100, SEEK_SET) == 100 && lseek(fd, 23, SEEK_CUR) == 123, "lseek");
    CHECK(lseek(fd, -3, SEEK_END) == (off_t)len - 3, "lseek from the end");
    SYS_FAILS(lseek(fd, -3, SEEK_SET), EINVAL);
    SYS_FAILS(lseek(fd, 0, 77), EINVAL);
    SYS(munmap(at, len));
    SYS(close(fd));
}

/* ---- copies from and into files with stores ---- */

enum copy { RANGE, RANGE_AT_CURSOR, SENDFILE, SENDFILE_AT_CURSOR, SPLICE, CLONE, CLONE_RANGE, COPIES };

/* Copies all of `from` to `to`; `false`: this is refused here. */
static bool copy(enum copy way, int from, int to)
{
    off_t in = 0, out = 0;
    size_t left = LEN;
    SYS(lseek(from, 0, SEEK_SET));
    SYS(lseek(to, 0, SEEK_SET));
    if (way == CLONE || way == CLONE_RANGE) {
        struct file_clone_range range = {.src_fd = from, .src_length = LEN};
        if (way == CLONE ? ioctl(to, FICLONE, from) : ioctl(to, FICLONERANGE, &range)) {
            CHECK(errno == EOPNOTSUPP || errno == EINVAL, "a clone: %s", strerror(errno));
            fprintf(stderr, "skip: cloning is refused here: %s\n", strerror(errno));
            return false;
        }
        return true;
    }
    int pipes[2];
    SYS(pipe(pipes));
    while (left > 0) {
        ssize_t n;
        if (way == RANGE)
            n = copy_file_range(from, &in, to, &out, left, 0);
        else if (way == RANGE_AT_CURSOR)
            n = copy_file_range(from, NULL, to, NULL, left, 0);
        else if (way == SENDFILE)
            n = sendfile(to, from, &in, left);
        else if (way == SENDFILE_AT_CURSOR)
            n = sendfile(to, from, NULL, left);
        else {
            n = splice(from, NULL, pipes[1], NULL, left, 0);
            for (ssize_t done = 0; n > 0 && done < n;)
                done += (ssize_t)SYS(splice(pipes[0], NULL, to, NULL, (size_t)(n - done), 0));
        }
        CHECK(n > 0, "copy %d gave %zd: %s", way, n, strerror(errno));
        left -= (size_t)n;
    }
    SYS(close(pipes[0]));
    SYS(close(pipes[1]));
    if (way == RANGE)
        CHECK(in == (off_t)LEN && out == (off_t)LEN, "the offsets of copy_file_range");
    if (way != RANGE && way != SENDFILE)
        CHECK(lseek(from, 0, SEEK_CUR) == (off_t)LEN, "the source's position");
    if (way != RANGE)
        CHECK(lseek(to, 0, SEEK_CUR) == (off_t)LEN, "the target's position");
    return true;
}

static void copies(void)
{
    uint8_t *expected = malloc(LEN), *seen = malloc(LEN);
    for (enum copy way = 0; way < COPIES; way++)
        for (int target_is_mapped = 0; target_is_mapped < 2; target_is_mapped++) {
            struct mapped file = mapped_file(""), target = {make_file(path, ".to", SEED + 1, LEN), NULL};
            if (target_is_mapped)
                target = mapped_file(".to");
            pattern_fill(SEED, 0, expected, LEN);
            for (size_t at = way; at < LEN; at += 3000) {
                file.at[at] ^= 0xff;
                expected[at] ^= 0xff;
                if (target_is_mapped)
                    target.at[at] ^= 0x33;
            }
            if (copy(way, file.fd, target.fd)) {
                if (target_is_mapped)
                    CHECK(!memcmp(target.at, expected, LEN), "the mapping of what copy %d made", way);
                pread_all(target.fd, seen, LEN, 0);
                CHECK(!memcmp(seen, expected, LEN), "what copy %d made", way);
                sync();
                pread_all(target.fd, seen, LEN, 0);
                CHECK(!memcmp(seen, expected, LEN), "what copy %d made, later", way);
            }
            unmap(file);
            if (target_is_mapped)
                SYS(munmap(target.at, LEN));
            SYS(close(target.fd));
        }
    free(expected);
    free(seen);
}

/* ---- appends ---- */

static void appends(void)
{
    struct mapped file = mapped_file("");
    int fd = (int)SYS(open(path, O_RDWR | O_APPEND));
    uint8_t bytes[100], seen[100];
    for (unsigned i = 0; i < 40; i++) {
        size_t at = i * 50000 + 17;
        memset(bytes, (int)i + 1, sizeof bytes);
        file.at[at - 1] = 0x77;
        file.at[at + 50] = 0x99;
        struct iovec part = {bytes, sizeof bytes};
        ssize_t n = pwritev2(fd, &part, 1, (off_t)at, RWF_NOAPPEND);
        if (n < 0 && errno == EOPNOTSUPP) {
            fprintf(stderr, "skip: RWF_NOAPPEND is refused here\n");
            break;
        }
        CHECK(n == (ssize_t)sizeof bytes, "pwritev2: %s", strerror(errno));
        CHECK(file.at[at - 1] == 0x77 && !memcmp(file.at + at, bytes, sizeof bytes),
              "a mapping after write %u", i);
        file.at[at + 200] = 0x11;
        SYS(msync(file.at, LEN, MS_SYNC));
        pread_all(fd, seen, sizeof seen, at);
        CHECK(!memcmp(seen, bytes, sizeof seen), "write %u was overwritten", i);
        CHECK(file_size(fd) == LEN, "it was appended");
    }
    struct iovec part = {bytes, sizeof bytes};
    SYS_FAILS(pwritev2(fd, &part, 1, 0, 0x40000000), EOPNOTSUPP);
    CHECK(pwrite(fd, bytes, 100, 5) == 100 && file_size(fd) == LEN + 100, "a pwrite that appends");
    CHECK(pwritev2(fd, &part, 1, 5, 0) == 100 && file_size(fd) == LEN + 200, "a pwritev2 that appends");
    CHECK(write(fd, bytes, 100) == 100 && lseek(fd, 0, SEEK_CUR) == (off_t)LEN + 300, "a write that appends");
    SYS(close(fd));
    unmap(file);
}

/* ---- fallocate ---- */

static void shifts(void)
{
    uint8_t *expected = malloc(2 * LEN);
    struct mapped file = mapped_file("");
    pattern_fill(SEED, 0, expected, LEN);
    for (size_t at = 9; at < LEN; at += 3000)
        file.at[at] = expected[at] = 0x5a;
    size_t size = LEN;
    if (fallocate(file.fd, FALLOC_FL_COLLAPSE_RANGE, 64 * 4096, 32 * 4096) == 0) {
        size -= 32 * PAGE;
        memmove(expected + 64 * PAGE, expected + 96 * PAGE, LEN - 96 * PAGE);
        CHECK(!memcmp(file.at, expected, size), "after a collapse");
        for (size_t at = 9; at < size; at += 5000)
            file.at[at] = expected[at] = 0x33;
        SYS(fallocate(file.fd, FALLOC_FL_INSERT_RANGE, 128 * 4096, 16 * 4096));
        memmove(expected + 144 * PAGE, expected + 128 * PAGE, size - 128 * PAGE);
        memset(expected + 128 * PAGE, 0, 16 * PAGE);
        size += 16 * PAGE;
        CHECK(!memcmp(file.at, expected, size), "after an insertion");
    } else {
        CHECK(errno == EOPNOTSUPP, "a collapse: %s", strerror(errno));
        fprintf(stderr, "skip: ranges cannot be collapsed here\n");
    }
    file.at[3] = expected[3] = 1;
    int error = posix_fallocate(file.fd, 0, (off_t)LEN + 100000);
    CHECK(error == 0, "posix_fallocate: %s", strerror(error));
    memset(expected + size, 0, LEN - size);
    CHECK(file_size(file.fd) == LEN + 100000, "posix_fallocate and the size");
    CHECK(!memcmp(file.at, expected, LEN), "after posix_fallocate");
    CHECK(posix_fallocate(file.fd, 0, 0) == EINVAL && posix_fallocate(file.fd, -1, 5) == EINVAL,
          "bad ranges");
    CHECK(posix_fallocate(-1, 0, 5) == EBADF, "a bad descriptor");
    unmap(file);
    free(expected);
}

/* ---- O_NONBLOCK ---- */

/* A file that is only read can be opened for writing without a wait, and what is written is seen. */
static void nonblocking(void)
{
    static const int FLAGS[] = {O_RDWR, O_WRONLY, O_WRONLY | O_APPEND, O_RDWR | O_CREAT};
    for (size_t i = 0; i < 2 * sizeof FLAGS / sizeof *FLAGS; i++) {
        SYS(close(make_file(path, "", SEED, LEN)));
        int reader = (int)SYS(open(path, O_RDONLY));
        uint8_t *at = map_file(reader, LEN, PROT_READ, MAP_SHARED, 0);
        pattern_check(SEED, 0, at, LEN, "a file that is only read");
        int flags = FLAGS[i / 2] | O_NONBLOCK;
        int fd = i % 2 ? openat(AT_FDCWD, path, flags, 0644) : open(path, flags, 0644);
        CHECK(fd >= 0, "way %zu: %s", i, strerror(errno));
        if (!(flags & O_APPEND)) {
            pwrite_all(fd, "new", 3, 5 * PAGE);
            CHECK(!memcmp(at + 5 * PAGE, "new", 3), "way %zu: what was written is not seen", i);
        }
        SYS(munmap(at, LEN));
        /* And cut. */
        SYS(close(fd));
        at = map_file(reader, LEN, PROT_READ, MAP_SHARED, 0);
        (void)*(volatile uint8_t *)at;
        fd = (int)SYS(open(path, O_WRONLY | O_TRUNC | O_NONBLOCK));
        CHECK(file_size(reader) == 0, "way %zu: the file is not cut", i);
        SYS(munmap(at, LEN));
        SYS(close(fd));
        SYS(close(reader));
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: filecalls FILE CASE");
    path = argv[1];
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {{"bad_pointers", bad_pointers}, {"cuts", cuts}, {"holes", holes}, {"copies", copies},
                 {"appends", appends}, {"shifts", shifts}, {"nonblocking", nonblocking}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        if (!strcmp(argv[2], CASES[i].name)) {
            CASES[i].run();
            printf("ok %s\n", argv[2]);
            return 0;
        }
    FAIL("there is no case %s", argv[2]);
}
