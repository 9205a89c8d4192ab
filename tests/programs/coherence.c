/* Writes through a descriptor are seen by mappings at once, stores by reads at once, and neither loses what
 * the other has put beside it on the same page.
 *   coherence FILE SEED OPERATIONS     FILE and FILE.from are made anew */
#include "common.h"
#include <sys/sendfile.h>

static const char *path;
static uint64_t seed;
static int fd, source;
static uint8_t *writable, *readable, *shadow;
static const size_t LEN = 6 * 1024 * 1024;
static size_t size;
static struct rng rng;

enum { MOST = 40000 };

/* All views agree on [at - a page, at + n + a page). */
static void agree(size_t at, size_t n, const char *what)
{
    size_t from = at > PAGE ? at - PAGE : 0, to = at + n + PAGE < size ? at + n + PAGE : size;
    static uint8_t bytes[MOST + 4 * 4096];
    if (from >= to)
        return;
    CHECK(!memcmp(readable + from, shadow + from, to - from),
          "after %s at %#zx: the read-only mapping differs", what, at);
    CHECK(!memcmp(writable + from, shadow + from, to - from),
          "after %s at %#zx: the writable mapping differs", what, at);
    switch (rng_below(&rng, 4)) {
    case 0:
        pread_all(fd, bytes, to - from, from);
        break;
    case 1:
        SYS(lseek(fd, (off_t)from, SEEK_SET));
        CHECK(read(fd, bytes, to - from) == (ssize_t)(to - from), "read: %s", strerror(errno));
        break;
    default: {
        size_t half = (to - from) / 2;
        struct iovec parts[2] = {{bytes, half}, {bytes + half, to - from - half}};
        CHECK(preadv(fd, parts, 2, (off_t)from) == (ssize_t)(to - from), "preadv: %s", strerror(errno));
    }
    }
    CHECK(!memcmp(bytes, shadow + from, to - from), "after %s at %#zx: a read differs", what, at);
}

static void store(size_t at, size_t n, const uint8_t *bytes)
{
    memcpy(writable + at, bytes, n);
    memcpy(shadow + at, bytes, n);
}

static void write_somehow(size_t at, size_t n, const uint8_t *bytes)
{
    struct iovec parts[3] = {{(void *)bytes, n / 3},
                             {(void *)(bytes + n / 3), n / 3},
                             {(void *)(bytes + n / 3 * 2), n - n / 3 * 2}};
    ssize_t done = 0;
    const char *what = "?";
    switch (rng_below(&rng, 5)) {
    case 0:
        what = "pwrite";
        done = pwrite(fd, bytes, n, (off_t)at);
        break;
    case 1:
        what = "write";
        SYS(lseek(fd, (off_t)at, SEEK_SET));
        done = write(fd, bytes, n);
        break;
    case 2:
        what = "writev";
        SYS(lseek(fd, (off_t)at, SEEK_SET));
        done = writev(fd, parts, 3);
        break;
    case 3:
        what = "pwritev";
        done = pwritev(fd, parts, 3, (off_t)at);
        break;
    default:
        what = "pwritev2";
        done = pwritev2(fd, parts, 3, (off_t)at, 0);
    }
    CHECK(done == (ssize_t)n, "%s gave %zd: %s", what, done, strerror(errno));
    memcpy(shadow + at, bytes, n);
    agree(at, n, what);
}

/* From another file, or from the file's own mapping. */
static void write_from_elsewhere(size_t at, size_t n)
{
    off_t in = (off_t)rng_below(&rng, LEN - n), out = (off_t)at;
    size_t done = 0;
    switch (rng_below(&rng, 3)) {
    case 0:
        while (done < n)
            done += (size_t)SYS(copy_file_range(source, &in, fd, &out, n - done, 0));
        pattern_fill(seed + 1, (uint64_t)in - n, shadow + at, n);
        agree(at, n, "copy_file_range");
        break;
    case 1:
        SYS(lseek(fd, (off_t)at, SEEK_SET));
        while (done < n)
            done += (size_t)SYS(sendfile(fd, source, &in, n - done));
        pattern_fill(seed + 1, (uint64_t)in - n, shadow + at, n);
        agree(at, n, "sendfile");
        break;
    default: {
        size_t from = rng_below(&rng, size - n);
        if (from < at + n && at < from + n)
            return; /* overlapping copies have no defined result */
        for (done = 0; done < n;)
            done += (size_t)SYS(pwrite(fd, readable + from + done, n - done, (off_t)(at + done)));
        memcpy(shadow + at, shadow + from, n);
        agree(at, n, "a write from the file's own mapping");
    }
    }
}

static void punch_or_zero(size_t at, size_t n, int mode, const char *what)
{
    if (fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)n) != 0) {
        CHECK(errno == EOPNOTSUPP, "%s: %s", what, strerror(errno));
        return;
    }
    memset(shadow + at, 0, n);
    agree(at, n, what);
}

static void resize(void)
{
    size_t before = size;
    size = LEN - rng_below(&rng, 30000);
    SYS(ftruncate(fd, (off_t)size));
    if (size > before)
        memset(shadow + before, 0, size - before);
    agree(size > 5000 ? size - 5000 : 0, 5000, "ftruncate");
}

static void random_operations(unsigned operations)
{
    static uint8_t bytes[MOST];
    for (unsigned i = 0; i < operations; i++) {
        size_t n = 1 + rng_below(&rng, rng_below(&rng, 4) ? 300 : MOST), at = rng_below(&rng, size - n);
        pattern_fill(seed + 2 + i, at, bytes, n);
        switch (rng_below(&rng, 10)) {
        case 0: case 1: case 2:
            write_somehow(at, n, bytes);
            break;
        case 3: case 4:
            write_from_elsewhere(at, n);
            break;
        case 5:
            punch_or_zero(at, n, FALLOC_FL_PUNCH_HOLE, "punching a hole");
            break;
        case 6:
            punch_or_zero(at, n, FALLOC_FL_ZERO_RANGE, "zeroing a range");
            break;
        case 7:
            if (i % 4 == 0)
                resize();
            break;
        default:
            store(at, n, bytes);
            agree(at, n, "a store");
        }
    }
    agree(0, 0, "everything");
    for (size_t at = 0; at < size; at += MOST)
        agree(at, size - at < MOST ? size - at : MOST, "everything");
}

/* A new mapping of any kind and size shows the stores that were made before it, and a private one keeps its
 * own. */
static void new_mappings(void)
{
    static const size_t LENGTHS[] = {4096, 200000, 4 * 1024 * 1024};
    static uint8_t bytes[MOST];
    for (unsigned i = 0; i < 60; i++) {
        size_t len = LENGTHS[i % 3], offset = rng_below(&rng, (LEN - len) / PAGE) * PAGE;
        int prot = i / 3 % 2 ? PROT_READ : PROT_READ | PROT_WRITE,
            flags = i / 6 % 2 ? MAP_SHARED : MAP_PRIVATE;
        size_t n = 1 + rng_below(&rng, len < MOST ? len : MOST), at = offset + rng_below(&rng, len - n + 1);
        pattern_fill(seed + 1000 + i, at, bytes, n);
        store(at, n, bytes);
        uint8_t *fresh = map_file(fd, len, prot, flags, offset);
        CHECK(!memcmp(fresh, shadow + offset, len), "mapping %u (%zu bytes, rights %d, flags %d) differs", i,
              len, prot, flags);
        if (prot & PROT_WRITE) {
            memset(fresh + len / 2, 0x42, 100);
            if (flags == MAP_SHARED)
                memset(shadow + offset + len / 2, 0x42, 100);
            agree(offset + len / 2, 100, "a store to a new mapping");
        }
        SYS(munmap(fresh, len));
    }
}

/* ---- races on the same pages ---- */

enum { THREADS = 6, SLOTS = 8192, ROUNDS = 60 };
static volatile _Atomic bool go;

static uint64_t slot_value(size_t slot, unsigned round)
{
    return mix(seed + slot * 131 + round);
}

/* Thread i owns the slots of 8 bytes whose number is i modulo THREADS: even threads store, odd ones write. */
static void *racer(void *argument)
{
    unsigned thread = (unsigned)(uintptr_t)argument;
    struct rng mine = rng_new(seed, thread);
    while (!go)
        ;
    for (unsigned round = 0; round < ROUNDS; round++)
        for (size_t k = 0; k < SLOTS / THREADS; k += 1 + rng_below(&mine, 4)) {
            size_t slot = k * THREADS + thread;
            uint64_t value = slot_value(slot, round), seen;
            if (thread % 2 == 0) {
                ((volatile uint64_t *)writable)[slot] = value;
                if (k % 16 == 0) {
                    pread_all(fd, &seen, 8, slot * 8);
                    CHECK(seen == value, "slot %zu, round %u: a read after a store sees %#llx", slot, round,
                          (unsigned long long)seen);
                }
            } else if (k % 8 == 1) {
                pwrite_all(fd, &value, 8, slot * 8);
                seen = ((volatile uint64_t *)readable)[slot];
                CHECK(seen == value, "slot %zu, round %u: a load after a write sees %#llx", slot, round,
                      (unsigned long long)seen);
            }
        }
    /* The last word of each slot. */
    for (size_t k = 0; k < SLOTS / THREADS; k++) {
        size_t slot = k * THREADS + thread;
        uint64_t value = slot_value(slot, ROUNDS);
        if (thread % 2 == 0)
            ((volatile uint64_t *)writable)[slot] = value;
        else
            pwrite_all(fd, &value, 8, slot * 8);
    }
    return NULL;
}

static void races(void)
{
    pthread_t ids[THREADS];
    static uint64_t slots[SLOTS];
    for (unsigned i = 0; i < THREADS; i++)
        SPAWN(&ids[i], racer, (void *)(uintptr_t)i);
    go = true;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    pread_all(fd, slots, sizeof slots, 0);
    for (size_t slot = 0; slot < SLOTS / THREADS * THREADS; slot++) {
        uint64_t value = slot_value(slot, ROUNDS);
        CHECK(slots[slot] == value, "an update of slot %zu is lost on the file", slot);
        CHECK(((uint64_t *)readable)[slot] == value, "an update of slot %zu is lost in the mapping", slot);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: coherence FILE SEED OPERATIONS");
    path = argv[1];
    seed = strtoull(argv[2], NULL, 0);
    rng = rng_new(seed, 0);
    size = LEN;
    fd = make_file(path, "", seed, LEN);
    source = make_file(path, ".from", seed + 1, LEN);
    shadow = malloc(LEN);
    pattern_fill(seed, 0, shadow, LEN);
    writable = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    readable = map_file(fd, LEN, PROT_READ, MAP_SHARED, 0);
    PART(random_operations, (unsigned)atoi(argv[3]));
    SYS(ftruncate(fd, (off_t)LEN));
    memset(shadow + size, 0, LEN - size);
    size = LEN;
    PART(new_mappings);
    PART(races);
    return 0;
}
