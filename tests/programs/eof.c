/* The end of the file: SIGBUS beyond it, zeros in the tail of its last page, growth, and truncation under a
 * mapping.
 *   eof FILE SEED       FILE is made anew */
#include "common.h"

static const char *path;
static uint64_t seed;
static const size_t SIZE = 5 * 1024 * 1024 + 1234; /* not a page's multiple */
static const size_t LEN = 8 * 1024 * 1024;

static size_t page_up(size_t at)
{
    return (at + PAGE - 1) / PAGE * PAGE;
}

static int fresh(void)
{
    return make_file(path, "", seed, SIZE);
}

static void ends_at(const uint8_t *base, size_t size)
{
    size_t end = page_up(size);
    if (size > 0)
        LOAD_GIVES(base + size - 1, base[size - 1]);
    if (size < end)
        zero_check(base + size, end - size, "the tail of the last page");
    if (end < LEN) {
        LOAD_RAISES(base + end, SIGBUS, BUS_ADRERR);
        LOAD_RAISES(base + end + PAGE + 321, SIGBUS, BUS_ADRERR);
        LOAD_RAISES(base + LEN - 1, SIGBUS, BUS_ADRERR);
    }
}

static void beyond_the_end(int prot)
{
    int fd = fresh();
    uint8_t *base = map_file(fd, LEN, prot, MAP_SHARED, 0);
    LOAD_RAISES(base + LEN - 1, SIGBUS, BUS_ADRERR);
    ends_at(base, SIZE);
    if (prot & PROT_WRITE)
        STORE_RAISES(base + page_up(SIZE) + 8, SIGBUS, BUS_ADRERR);
    pattern_check(seed, 0, base, SIZE, "the file before its end");
    ends_at(base, SIZE);
    SYS(munmap(base, LEN));
    /* A mapping that starts beyond the end. */
    base = map_file(fd, LEN, PROT_READ, MAP_PRIVATE, 2 * LEN);
    LOAD_RAISES(base, SIGBUS, BUS_ADRERR);
    LOAD_RAISES(base + LEN - 1, SIGBUS, BUS_ADRERR);
    SYS(munmap(base, LEN));
    SYS(close(fd));
}

/* More pages than a process may have mappings, side by side or apart. */
static void many_pages_beyond(size_t apart)
{
    const size_t pages = 70000 * apart;
    int fd = fresh();
    uint8_t *base = map_file(fd, pages * PAGE, PROT_READ, MAP_SHARED, 0);
    for (size_t page = page_up(SIZE) / PAGE; page < pages; page += apart)
        LOAD_RAISES(base + page * PAGE, SIGBUS, BUS_ADRERR);
    SYS(ftruncate(fd, (off_t)(pages * PAGE)));
    for (size_t page = page_up(SIZE) / PAGE; page < pages; page += 1000 * apart)
        LOAD_GIVES(base + page * PAGE, 0);
    SYS(munmap(base, pages * PAGE));
    SYS(close(fd));
}

/* Stores into the tail are kept nowhere: the file does not get longer. */
static void tail_stores(void)
{
    int fd = fresh();
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    size_t end = page_up(SIZE);
    uint8_t bytes[PAGE];
    memset(base + SIZE, 0xee, end - SIZE);
    STORE_WORKS(base + SIZE - 1, pattern_byte(seed, SIZE - 1));
    SYS(msync(base, LEN, MS_SYNC));
    CHECK(file_size(fd) == SIZE, "the file has %llu bytes", (unsigned long long)file_size(fd));
    ssize_t n = SYS(pread(fd, bytes, PAGE, (off_t)(end - PAGE)));
    CHECK((size_t)n == SIZE - (end - PAGE), "a read of the last page gave %zd bytes", n);
    pattern_check(seed, end - PAGE, bytes, (size_t)n, "the last page");
    SYS(munmap(base, LEN));
    CHECK(file_size(fd) == SIZE, "the file has %llu bytes", (unsigned long long)file_size(fd));
    SYS(close(fd));
}

static void growth(void)
{
    int fd = fresh();
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    uint8_t bytes[3000];
    size_t size = SIZE;
    ends_at(base, size);
    /* By ftruncate: zeros. */
    SYS(ftruncate(fd, (off_t)(size + 10 * PAGE)));
    zero_check(base + size, 10 * PAGE, "what ftruncate has added");
    size += 10 * PAGE;
    ends_at(base, size);
    STORE_WORKS(base + size - 1, 0xab);
    /* By pwrite at the end, by write at the end, by O_APPEND, by writev, by fallocate. */
    memset(bytes, 0x31, sizeof bytes);
    pwrite_all(fd, bytes, sizeof bytes, size);
    LOAD_GIVES(base + size - 1, 0xab);
    bytes_check(base + size, 0x31, sizeof bytes, "what pwrite has added");
    size += sizeof bytes;
    ends_at(base, size);
    memset(bytes, 0x32, sizeof bytes);
    SYS(lseek(fd, 0, SEEK_END));
    CHECK(write(fd, bytes, sizeof bytes) == sizeof bytes, "write: %s", strerror(errno));
    bytes_check(base + size, 0x32, sizeof bytes, "what write has added");
    size += sizeof bytes;
    ends_at(base, size);
    int append = (int)SYS(open(path, O_WRONLY | O_APPEND));
    memset(bytes, 0x33, sizeof bytes);
    CHECK(write(append, bytes, sizeof bytes) == sizeof bytes, "write: %s", strerror(errno));
    bytes_check(base + size, 0x33, sizeof bytes, "what O_APPEND has added");
    size += sizeof bytes;
    ends_at(base, size);
    struct iovec parts[2] = {{bytes, 1000}, {bytes + 500, 2500}};
    memset(bytes, 0x34, sizeof bytes);
    CHECK(writev(append, parts, 2) == 3500, "writev: %s", strerror(errno));
    bytes_check(base + size, 0x34, 3500, "what writev has added");
    size += 3500;
    ends_at(base, size);
    SYS(posix_fallocate(fd, (off_t)size, 20000));
    zero_check(base + size, 20000, "what posix_fallocate has added");
    size += 20000;
    ends_at(base, size);
    pattern_check(seed, 0, base, SIZE, "what was there before");
    CHECK(file_size(fd) == size, "the file has %llu bytes", (unsigned long long)file_size(fd));
    SYS(munmap(base, LEN));
    SYS(close(append));
    SYS(close(fd));
}

/* A write far beyond the end leaves a hole of zeros, which can be stored to. */
static void hole(void)
{
    int fd = fresh();
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    size_t far = 7 * MIB + 17;
    pwrite_all(fd, "far", 3, far);
    zero_check(base + SIZE, far - SIZE, "the hole");
    CHECK(!memcmp(base + far, "far", 3), "the bytes behind the hole are wrong");
    ends_at(base, far + 3);
    memset(base + 6 * MIB, 0x44, 100000);
    SYS(msync(base, LEN, MS_SYNC));
    uint8_t *bytes = malloc(MIB);
    pread_all(fd, bytes, MIB, 6 * MIB);
    bytes_check(bytes, 0x44, 100000, "stores into the hole");
    zero_check(bytes + 100000, MIB - 100000, "the rest of the hole");
    free(bytes);
    SYS(munmap(base, LEN));
    SYS(close(fd));
}

/* A write that stops in its midst, because its source ends, and then a longer file: what was not written
 * reads as zeros and can be stored to. Of the bytes between, ext4 keeps blocks put aside for data that never
 * comes, and refuses to read them with O_DIRECT. */
static void after_a_short_write(int by_fallocate)
{
    size_t whole = 8 * PAGE, there = 5 * PAGE, end = 64 * KIB;
    uint8_t *source = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(source != MAP_FAILED, "mmap: %s", strerror(errno));
    memset(source, 0x55, there);
    SYS(munmap(source + there, whole - there));
    for (size_t at = 0; at < 8 * PAGE; at += 1028) {
        unlink(path);
        int fd = (int)SYS(open(path, O_RDWR | O_CREAT | O_TRUNC, 0644));
        CHECK(pwrite(fd, source, whole, (off_t)at) == (ssize_t)there, "pwrite: %s", strerror(errno));
        SYS(fdatasync(fd));
        if (by_fallocate)
            SYS(fallocate(fd, 0, (off_t)(at + whole), (off_t)(end - at - whole) + 100));
        else
            SYS(ftruncate(fd, (off_t)end + 100));
        uint8_t *base = map_file(fd, 2 * end, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        zero_check(base, at, "before what was written");
        bytes_check(base + at, 0x55, there, "what was written");
        zero_check(base + at + there, end + PAGE - at - there, "after what was written");
        memset(base + at + there, 0x66, end - at - there);
        SYS(msync(base, end, MS_SYNC));
        uint8_t bytes[64 * KIB];
        pread_all(fd, bytes, end, 0);
        bytes_check(bytes + at + there, 0x66, end - at - there, "stores behind what was written");
        SYS(munmap(base, 2 * end));
        SYS(close(fd));
    }
    SYS(munmap(source, there));
}

static void truncation(int dirty)
{
    int fd = fresh();
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    size_t size = 2 * MIB + 777;
    pattern_check(seed, 0, base, SIZE, "before truncation");
    if (dirty)
        for (size_t at = 0; at < SIZE; at += PAGE)
            base[at] = pattern_byte(seed, at); /* the same byte: the page is dirty, its content as before */
    SYS(ftruncate(fd, (off_t)size));
    CHECK(file_size(fd) == size, "the file has %llu bytes", (unsigned long long)file_size(fd));
    ends_at(base, size);
    pattern_check(seed, 0, base, size, "what truncation has left");
    STORE_RAISES(base + page_up(size), SIGBUS, BUS_ADRERR);
    /* Growing again brings zeros, not what was there. */
    SYS(ftruncate(fd, (off_t)SIZE));
    zero_check(base + size, SIZE - size, "truncated and grown again");
    ends_at(base, SIZE);
    pattern_check(seed, 0, base, size, "what truncation has left");
    /* To nothing, and the name's way. */
    SYS(truncate(path, 0));
    ends_at(base, 0);
    pwrite_all(fd, "new", 3, 0);
    CHECK(!memcmp(base, "new", 3), "the first bytes after truncation to 0 are wrong");
    ends_at(base, 3);
    /* And O_TRUNC's. */
    int again = (int)SYS(open(path, O_RDWR | O_TRUNC));
    LOAD_RAISES(base, SIGBUS, BUS_ADRERR);
    pwrite_all(again, "again", 5, PAGE);
    zero_check(base, PAGE, "a hole before what was written");
    CHECK(!memcmp(base + PAGE, "again", 5), "the bytes after O_TRUNC are wrong");
    SYS(munmap(base, LEN));
    CHECK(file_size(fd) == PAGE + 5, "the file has %llu bytes", (unsigned long long)file_size(fd));
    SYS(close(again));
    SYS(close(fd));
}

/* A system call with a buffer beyond the end gets EFAULT, or as much as there is. */
static void system_calls(void)
{
    int fd = fresh(), null = (int)SYS(open("/dev/zero", O_RDONLY)), pipes[2];
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    size_t end = page_up(SIZE);
    SYS(pipe(pipes));
    SYS_FAILS(write(pipes[1], base + end, 10), EFAULT);
    SYS_FAILS(read(null, base + end, 10), EFAULT);
    CHECK(write(pipes[1], base + end - 100, 100) == 100, "write: %s", strerror(errno));
    LOAD_RAISES(base + end, SIGBUS, BUS_ADRERR);
    SYS(munmap(base, LEN));
    SYS(close(fd));
    SYS(close(null));
    SYS(close(pipes[0]));
    SYS(close(pipes[1]));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: eof FILE SEED");
    path = argv[1];
    seed = strtoull(argv[2], NULL, 0);
    probe_install();
    PART(beyond_the_end, PROT_READ);
    PART(beyond_the_end, PROT_READ | PROT_WRITE);
    PART(many_pages_beyond, 1);
    PART(many_pages_beyond, 2);
    PART(tail_stores);
    PART(growth);
    PART(hole);
    PART(after_a_short_write, 1);
    PART(after_a_short_write, 0);
    PART(truncation, 0);
    PART(truncation, 1);
    PART(system_calls);
    return 0;
}
