/* The layout verbs on parts of mappings: munmap, MAP_FIXED over them, mprotect, mremap, hints, mincore, and
 * the errors that the kernel gives.
 *   partial FILE SEED     FILE is the pattern of SEED, at least 8 MiB; FILE.b is made and used too */
#include "common.h"

static int fd, other;
static uint64_t seed, other_seed;
static const size_t LEN = 4 * 1024 * 1024;

static uint8_t *map_shared(int prot, uint64_t offset)
{
    return map_file(fd, LEN, prot, MAP_SHARED, offset);
}

static void is_file(const uint8_t *base, size_t from, size_t to, uint64_t offset)
{
    pattern_check(seed, offset + from, base + from, to - from, "a part that stays mapped");
}

static void is_unmapped(const uint8_t *base, size_t from, size_t to)
{
    LOAD_RAISES(base + from, SIGSEGV, SEGV_MAPERR);
    LOAD_RAISES(base + (from + to) / 2 + 17, SIGSEGV, SEGV_MAPERR);
    STORE_RAISES(base + to - 1, SIGSEGV, SEGV_MAPERR);
}

static void unmap_parts(int prot)
{
    size_t quarter = LEN / 4;
    uint8_t *base = map_shared(prot, 0);
    LOAD_GIVES(base + 5, pattern_byte(seed, 5));
    SYS(munmap(base, quarter));
    is_unmapped(base, 0, quarter);
    is_file(base, quarter, LEN, 0);
    SYS(munmap(base + 3 * quarter, quarter));
    is_unmapped(base, 3 * quarter, LEN);
    is_file(base, quarter, 3 * quarter, 0);
    SYS(munmap(base + 2 * quarter - PAGE, 2 * PAGE));
    is_unmapped(base, 2 * quarter - PAGE, 2 * quarter + PAGE);
    is_file(base, quarter, 2 * quarter - PAGE, 0);
    is_file(base, 2 * quarter + PAGE, 3 * quarter, 0);
    /* What is not mapped any more may be unmapped again, with what is left. */
    SYS(munmap(base, LEN));
    is_unmapped(base, quarter, 2 * quarter);
}

static void unmap_several(void)
{
    /* Two mappings of files side by side and an anonymous one, gone in one call, over reserved address space
     * so that nothing else can come to lie between them. */
    uint8_t *base = mmap(NULL, 4 * LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED, "mmap: %s", strerror(errno));
    CHECK(mmap(base, LEN, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == base, "mmap: %s", strerror(errno));
    CHECK(mmap(base + LEN, LEN, PROT_READ, MAP_SHARED | MAP_FIXED, other, 0) == base + LEN, "mmap: %s",
          strerror(errno));
    CHECK(mmap(base + 3 * LEN, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
              base + 3 * LEN, "mmap: %s", strerror(errno));
    is_file(base, 0, LEN, 0);
    pattern_check(other_seed, 0, base + LEN, LEN, "the other file");
    LOAD_RAISES(base + 2 * LEN, SIGSEGV, SEGV_ACCERR);
    STORE_WORKS(base + 3 * LEN, 1);
    SYS(munmap(base + LEN / 2, 3 * LEN));
    is_file(base, 0, LEN / 2, 0);
    is_unmapped(base, LEN / 2, 7 * LEN / 2);
    LOAD_GIVES(base + 4 * LEN - 1, 0);
    SYS(munmap(base, 4 * LEN));
}

static void fixed_over(void)
{
    size_t from = LEN / 4 + PAGE, to = LEN / 2, n = to - from;
    uint8_t *base = map_shared(PROT_READ | PROT_WRITE, 0), *at = base + from;
    is_file(base, 0, LEN, 0);
    CHECK(mmap(at, n, PROT_READ, MAP_SHARED | MAP_FIXED, other, (off_t)(3 * PAGE)) == at, "mmap: %s",
          strerror(errno));
    pattern_check(other_seed, 3 * PAGE, at, n, "another file over the middle");
    STORE_RAISES(at, SIGSEGV, SEGV_ACCERR);
    is_file(base, 0, from, 0);
    is_file(base, to, LEN, 0);
    CHECK(mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at,
          "mmap: %s", strerror(errno));
    zero_check(at, n, "anonymous memory over the middle");
    memset(at, 0x77, n);
    bytes_check(at, 0x77, n, "anonymous memory over the middle");
    is_file(base, 0, from, 0);
    is_file(base, to, LEN, 0);
    CHECK(mmap(at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at,
          "mmap: %s", strerror(errno));
    LOAD_RAISES(at, SIGSEGV, SEGV_ACCERR);
    STORE_RAISES(at + n - 1, SIGSEGV, SEGV_ACCERR);
    LOAD_GIVES(at - 1, pattern_byte(seed, from - 1));
    LOAD_GIVES(at + n, pattern_byte(seed, to));
    /* And the file again. */
    CHECK(mmap(at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)from) == at, "mmap: %s",
          strerror(errno));
    is_file(base, 0, LEN, 0);
    /* A small mapping over one page, too small to be worth managing. */
    CHECK(mmap(base + PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, other, 0) == base + PAGE, "mmap: %s",
          strerror(errno));
    pattern_check(other_seed, 0, base + PAGE, PAGE, "one page of another file");
    is_file(base, 0, PAGE, 0);
    is_file(base, 2 * PAGE, LEN, 0);
    SYS_FAILS(mmap(at, n, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0), EEXIST);
    SYS(munmap(base, LEN));
}

/* Stores that were made before their mapping was unmapped or replaced are in the file. */
static void stores_outlive_their_mapping(void)
{
    uint8_t *base = map_file(other, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    uint64_t new_seed = other_seed + 1;
    uint8_t *bytes = malloc(LEN);
    pattern_fill(new_seed, 0, base, LEN);
    CHECK(mmap(base + LEN / 2, LEN / 4, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
              base + LEN / 2,
          "mmap: %s", strerror(errno));
    zero_check(base + LEN / 2, LEN / 4, "anonymous memory over stores");
    SYS(munmap(base, LEN / 4));
    pread_all(other, bytes, LEN, 0);
    pattern_check(new_seed, 0, bytes, LEN, "the file after munmap");
    SYS(munmap(base, LEN));
    base = map_file(other, LEN, PROT_READ, MAP_SHARED, 0);
    pattern_check(new_seed, 0, base, LEN, "a new mapping");
    SYS(munmap(base, LEN));
    free(bytes);
    other_seed = new_seed;
}

static void protect_parts(void)
{
    uint8_t *base = map_file(other, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    size_t third = LEN / 3 / PAGE * PAGE;
    uint8_t *middle = base + third, *last = base + 2 * third;
    STORE_WORKS(middle + 3, pattern_byte(other_seed, third + 3));
    SYS(mprotect(middle, third, PROT_READ));
    SYS(mprotect(last, LEN - 2 * third, PROT_NONE));
    STORE_RAISES(middle + 3, SIGSEGV, SEGV_ACCERR);
    STORE_RAISES(middle + third - 1, SIGSEGV, SEGV_ACCERR);
    pattern_check(other_seed, third, middle, third, "a part made read-only");
    STORE_RAISES(middle + 3, SIGSEGV, SEGV_ACCERR);
    LOAD_RAISES(last, SIGSEGV, SEGV_ACCERR);
    STORE_RAISES(last + 5 * PAGE + 9, SIGSEGV, SEGV_ACCERR);
    STORE_WORKS(middle - 1, pattern_byte(other_seed, third - 1));
    SYS(mprotect(base, LEN, PROT_READ | PROT_WRITE));
    pattern_check(other_seed, 0, base, LEN, "all of it, writable again");
    other_seed++;
    pattern_fill(other_seed, 0, base, LEN);
    SYS(mprotect(base, LEN, PROT_NONE));
    LOAD_RAISES(base, SIGSEGV, SEGV_ACCERR);
    SYS(mprotect(base, LEN, PROT_READ));
    pattern_check(other_seed, 0, base, LEN, "stores from before PROT_NONE");
    STORE_RAISES(base + LEN - 1, SIGSEGV, SEGV_ACCERR);
    SYS(munmap(base, LEN));
}

/* A private mapping that becomes writable: its stores are nobody else's. */
static void private_becomes_writable(void)
{
    uint8_t *base = map_file(fd, LEN, PROT_READ, MAP_PRIVATE, 2 * PAGE);
    uint8_t *witness = map_file(fd, LEN, PROT_READ, MAP_PRIVATE, 2 * PAGE),
            *shared = map_shared(PROT_READ, 2 * PAGE);
    size_t from = LEN / 4, to = LEN / 2;
    uint8_t *bytes = malloc(LEN);
    is_file(base, LEN / 8, 3 * LEN / 8, 2 * PAGE);
    STORE_RAISES(base + from, SIGSEGV, SEGV_ACCERR);
    SYS(mprotect(base + from, to - from, PROT_READ | PROT_WRITE));
    is_file(base, 0, LEN, 2 * PAGE);
    for (size_t at = from; at < to; at += 3 * PAGE + 123)
        STORE_WORKS(base + at, (uint8_t)(base[at] + 1));
    STORE_RAISES(base + from - 1, SIGSEGV, SEGV_ACCERR);
    STORE_RAISES(base + to, SIGSEGV, SEGV_ACCERR);
    for (size_t at = from, next = from; at < to; at++) {
        uint8_t changed = at == next;
        CHECK(base[at] == (uint8_t)(pattern_byte(seed, 2 * PAGE + at) + changed), "private byte %#zx is %#x",
              at, base[at]);
        next += changed ? 3 * PAGE + 123 : 0;
    }
    is_file(base, 0, from, 2 * PAGE);
    is_file(base, to, LEN, 2 * PAGE);
    is_file(witness, 0, LEN, 2 * PAGE);
    is_file(shared, 0, LEN, 2 * PAGE);
    pread_all(fd, bytes, LEN, 2 * PAGE);
    pattern_check(seed, 2 * PAGE, bytes, LEN, "the file under a private store");
    SYS(munmap(base, LEN));
    SYS(munmap(witness, LEN));
    SYS(munmap(shared, LEN));
    free(bytes);
}

/* A private mapping that is writable from the start. */
static void private_writable(void)
{
    uint8_t *base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0),
            *shared = map_shared(PROT_READ, 0);
    is_file(base, 0, LEN, 0);
    memset(base + 100, 0x11, LEN / 2);
    bytes_check(base + 100, 0x11, LEN / 2, "a private writable mapping");
    is_file(base, 0, 100, 0);
    is_file(base, 100 + LEN / 2, LEN, 0);
    is_file(shared, 0, LEN, 0);
    SYS(munmap(base, LEN));
    SYS(munmap(shared, LEN));
}

static void remap(void)
{
    uint8_t *base = map_file(other, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, PAGE);
    other_seed++;
    pattern_fill(other_seed, 0, base, LEN); /* the pattern's offset 0 is at page 1 of the file */
    SYS(msync(base, LEN, MS_ASYNC));
    memcpy(base + 77, "dirty before the move", 21);
    uint8_t *small = mremap(base, LEN, LEN / 2, 0);
    CHECK(small == base, "mremap to less gave %p: %s", small, strerror(errno));
    is_unmapped(base, LEN / 2, LEN);
    pattern_check(other_seed, 100, base + 100, LEN / 2 - 100, "after mremap to less");
    uint8_t *grown = mremap(base, LEN / 2, LEN + LEN / 2, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "mremap to more: %s", strerror(errno));
    CHECK(!memcmp(grown + 77, "dirty before the move", 21), "mremap lost a store");
    pattern_check(other_seed, 100, grown + 100, LEN - 100, "after mremap to more");
    if (grown != base)
        is_unmapped(base, 0, LEN / 2);
    /* To a place of our choice, over something that is there. */
    uint8_t *room = mmap(NULL, 2 * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED, "mmap: %s", strerror(errno));
    memset(room, 1, 2 * LEN);
    memcpy(grown + 77, "dirty again, and moved", 22);
    uint8_t *moved = mremap(grown, LEN + LEN / 2, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, room + PAGE);
    CHECK(moved == room + PAGE, "mremap to a place of our choice gave %p: %s", moved, strerror(errno));
    is_unmapped(grown, 0, LEN + LEN / 2);
    CHECK(!memcmp(moved + 77, "dirty again, and moved", 22), "mremap lost a store");
    pattern_check(other_seed, 100, moved + 100, LEN - 100, "after mremap to a place");
    LOAD_GIVES(room, 1);
    LOAD_GIVES(moved + LEN, 1);
    STORE_WORKS(moved + 78, 'I');
    SYS(munmap(room, 2 * LEN));
    char text[23] = "";
    pread_all(other, text, 22, PAGE + 77);
    CHECK(!strcmp(text, "dIrty again, and moved"), "the file has \"%s\"", text);
    /* Over another managed mapping. */
    uint8_t *first = map_shared(PROT_READ, 0), *second = map_shared(PROT_READ, LEN);
    LOAD_GIVES(first + 9, pattern_byte(seed, 9));
    LOAD_GIVES(second + 9, pattern_byte(seed, LEN + 9));
    CHECK(mremap(second, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, first) == first, "mremap: %s",
          strerror(errno));
    is_file(first, 0, LEN, LEN);
    is_unmapped(second, 0, LEN);
    SYS(munmap(first, LEN));
    /* More than fits in place. */
    uint8_t *tight = map_shared(PROT_READ, 0);
    CHECK(mmap(tight + LEN / 2, LEN / 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
              tight + LEN / 2,
          "mmap: %s", strerror(errno));
    SYS_FAILS(mremap(tight, LEN / 2, LEN, 0), ENOMEM);
    is_file(tight, 0, LEN / 2, 0);
    SYS(munmap(tight, LEN));
    SYS(ftruncate(other, 0));
    pwrite_all(other, "", 1, 2 * LEN);
}

/* Parts of one mapping with the same rights are one again: mremap takes them as such. */
static void remap_of_joined_parts(void)
{
    uint8_t *base = map_shared(PROT_READ | PROT_WRITE, 0);
    SYS(mprotect(base + LEN / 4, LEN / 4, PROT_READ));
    SYS(mprotect(base + LEN / 2, LEN / 4, PROT_NONE));
    SYS(mprotect(base + LEN / 4, LEN / 2, PROT_READ | PROT_WRITE));
    uint8_t *moved = mremap(base, LEN, LEN + LEN / 4, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap of parts that were joined: %s", strerror(errno));
    is_file(moved, 0, LEN + LEN / 4, 0);
    /* What has grown in place is one mapping, too. */
    uint8_t *grown = mremap(moved, LEN + LEN / 4, LEN + LEN / 2, MREMAP_MAYMOVE);
    CHECK(grown != MAP_FAILED, "mremap to more, again: %s", strerror(errno));
    is_file(grown, 0, LEN + LEN / 2, 0);
    uint8_t *small = mremap(grown, LEN + LEN / 2, LEN / 2, 0);
    CHECK(small == grown, "mremap to less of what has grown: %s", strerror(errno));
    SYS(munmap(small, LEN / 2));
}

static void hints_and_offsets(void)
{
    uint8_t *first = map_shared(PROT_READ, 0);
    /* A hint that is taken cannot be followed; one that is no page address is rounded. */
    uint8_t *second = mmap(first, LEN, PROT_READ, MAP_SHARED, fd, (off_t)(MIB + PAGE));
    CHECK(second != MAP_FAILED && (second >= first + LEN || second + LEN <= first),
          "a hint replaced a mapping");
    uint8_t *third = mmap(first + 12345, LEN, PROT_READ, MAP_PRIVATE, fd, (off_t)PAGE);
    CHECK(third != MAP_FAILED && (uintptr_t)third % PAGE == 0, "a mapping at %p", third);
    is_file(first, 0, LEN, 0);
    is_file(second, 0, LEN, MIB + PAGE);
    is_file(third, 0, LEN, PAGE);
    SYS(munmap(second, LEN));
    is_unmapped(second, 0, LEN);
    SYS(munmap(first, LEN));
    SYS(munmap(third, LEN));
    /* A length that is no multiple of the page size maps the whole of its last page. */
    uint8_t *odd = map_file(fd, 2 * MIB + 1, PROT_READ, MAP_SHARED, 0);
    is_file(odd, 0, 2 * MIB + PAGE, 0);
    SYS(munmap(odd, 2 * MIB + 1));
    is_unmapped(odd, 0, 2 * MIB + PAGE);
}

static void residency(void)
{
    uint8_t *base = map_shared(PROT_READ, 0);
    unsigned char pages[1024];
    LOAD_GIVES(base + 7 * PAGE + 1, pattern_byte(seed, 7 * PAGE + 1));
    SYS(mincore(base, LEN, pages));
    CHECK(pages[7] & 1, "a page that was touched just now is not resident");
    SYS(mincore(base + 7 * PAGE, PAGE, pages));
    CHECK(pages[0] & 1, "a page that was touched just now is not resident");
    SYS_FAILS(mincore(base + 1, PAGE, pages), EINVAL);
    SYS(munmap(base + PAGE, PAGE));
    SYS_FAILS(mincore(base, 3 * PAGE, pages), ENOMEM);
    SYS(munmap(base, LEN));
    SYS_FAILS(mincore(base, LEN, pages), ENOMEM);
}

static void errors(const char *path)
{
    int reader = (int)SYS(open(path, O_RDONLY)), writer = (int)SYS(open(path, O_WRONLY));
    SYS_FAILS(mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0), EACCES);
    SYS_FAILS(mmap(NULL, LEN, PROT_READ, MAP_SHARED, writer, 0), EACCES);
    SYS_FAILS(mmap(NULL, LEN, PROT_READ, MAP_PRIVATE, writer, 0), EACCES);
    SYS_FAILS(mmap(NULL, LEN, PROT_READ, MAP_SHARED, fd, 1), EINVAL);
    SYS_FAILS(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
    SYS_FAILS(mmap(NULL, LEN, PROT_READ, 0, fd, 0), EINVAL);
    SYS_FAILS(mmap(NULL, LEN, PROT_READ, MAP_SHARED, 999, 0), EBADF);
    uint8_t *base = map_file(reader, LEN, PROT_READ, MAP_SHARED, 0);
    SYS_FAILS(mmap(base + 1, LEN, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0), EINVAL);
    SYS_FAILS(mprotect(base, LEN, PROT_READ | PROT_WRITE), EACCES);
    SYS_FAILS(mprotect(base + 1, PAGE, PROT_READ), EINVAL);
    SYS_FAILS(munmap(base + 1, PAGE), EINVAL);
    SYS_FAILS(munmap(base, 0), EINVAL);
    SYS_FAILS(msync(base + 1, PAGE, MS_SYNC), EINVAL);
    SYS_FAILS(msync(base, PAGE, MS_SYNC | MS_ASYNC), EINVAL);
    SYS_FAILS(madvise(base + 1, PAGE, MADV_NORMAL), EINVAL);
    SYS_FAILS(madvise(base, PAGE, 12345), EINVAL);
    is_file(base, 0, LEN, 0);
    SYS(munmap(base + LEN / 2, PAGE));
    SYS_FAILS(msync(base, LEN, MS_SYNC), ENOMEM);
    SYS_FAILS(madvise(base, LEN, MADV_WILLNEED), ENOMEM);
    SYS_FAILS(mprotect(base, LEN, PROT_READ), ENOMEM);
    SYS_FAILS(mremap(base + LEN / 2, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EFAULT);
    SYS(munmap(base, LEN));
    SYS(close(reader));
    SYS(close(writer));
}

static void over_and_over(void)
{
    for (unsigned i = 0; i < 1500; i++) {
        uint64_t offset = i % 512 * PAGE;
        uint8_t *base = map_shared(PROT_READ, offset);
        size_t at = mix(i) % LEN;
        CHECK(base[at] == pattern_byte(seed, offset + at), "mapping %u is wrong", i);
        if (i % 3)
            SYS(munmap(base + i % 7 * PAGE, PAGE));
        SYS(munmap(base, LEN));
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: partial FILE SEED");
    seed = strtoull(argv[2], NULL, 0);
    other_seed = seed + 1000;
    fd = (int)SYS(open(argv[1], O_RDWR));
    CHECK(file_size(fd) >= 8 * MIB, "the file must have 8 MiB");
    other = make_file(argv[1], ".b", other_seed, 2 * LEN);
    probe_install();
    PART(unmap_parts, PROT_READ);
    PART(unmap_parts, PROT_READ | PROT_WRITE);
    PART(unmap_several);
    PART(fixed_over);
    PART(stores_outlive_their_mapping);
    PART(protect_parts);
    PART(private_becomes_writable);
    PART(private_writable);
    PART(hints_and_offsets);
    PART(residency);
    PART(errors, argv[1]);
    PART(over_and_over);
    PART(remap);
    PART(remap_of_joined_parts);
    return 0;
}
