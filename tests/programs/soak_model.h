/* What soak.c knows of the files and the mappings of a thread, and the comparison of the world with it. */
#ifndef SOAK_MODEL_H
#define SOAK_MODEL_H

#include "common.h"

enum { REGIONS = 20, MOST = 96 * 1024, STRIPE = 40, COMMON = 6 * 1024 * 1024 };

struct region {
    uint8_t *at;
    size_t pages, file_page;
    int prot;
};

struct worker {
    unsigned id;
    uint64_t steps;
    const char *doing;
    struct rng rng;
    char path[4000];
    int fd;
    size_t size, most; /* of the file, in bytes */
    uint8_t *shadow;   /* `most` bytes; zero beyond `size` */
    uint8_t *own;      /* COMMON bytes: what this thread's stripes of the common file hold */
    struct region regions[REGIONS];
    unsigned count;
    uint8_t bytes[MOST];
};

static uint64_t seed;

#define EXPECT(condition, format, ...)                                                                       \
    CHECK(condition, "seed %llu, thread %u, step %llu, %s: " format, (unsigned long long)seed, w->id,        \
          (unsigned long long)w->steps, w->doing, ##__VA_ARGS__)

static size_t below(struct worker *w, size_t bound)
{
    return rng_below(&w->rng, bound);
}

static size_t page_up(size_t at)
{
    return (at + PAGE - 1) / PAGE * PAGE;
}

/* ---- the model ---- */

static struct region *any_region(struct worker *w)
{
    return w->count ? &w->regions[below(w, w->count)] : NULL;
}

/* [at, at + pages) is not this worker's any more: regions are cut, split or dropped. */
static void carve(struct worker *w, uint8_t *at, size_t pages)
{
    uint8_t *end = at + pages * PAGE;
    for (unsigned i = 0; i < w->count;) {
        struct region old = w->regions[i];
        uint8_t *old_end = old.at + old.pages * PAGE;
        if (old_end <= at || end <= old.at) {
            i++;
            continue;
        }
        w->regions[i] = w->regions[--w->count];
        if (old.at < at) {
            struct region head = old;
            head.pages = (size_t)(at - old.at) / PAGE;
            EXPECT(w->count < REGIONS, "too many regions");
            w->regions[w->count++] = head;
        }
        if (end < old_end) {
            size_t cut = (size_t)(end - old.at) / PAGE;
            EXPECT(w->count < REGIONS, "too many regions");
            w->regions[w->count++] = (struct region){end, old.pages - cut, old.file_page + cut, old.prot};
        }
        i = 0;
    }
}

static void add(struct worker *w, uint8_t *at, size_t pages, size_t file_page, int prot)
{
    EXPECT(w->count < REGIONS, "too many regions");
    w->regions[w->count++] = (struct region){at, pages, file_page, prot};
}

/* There is room for an operation that splits regions. */
static void make_room(struct worker *w)
{
    while (w->count > REGIONS - 4) {
        struct region victim = w->regions[below(w, w->count)];
        EXPECT(munmap(victim.at, victim.pages * PAGE) == 0, "munmap: %s", strerror(errno));
        carve(w, victim.at, victim.pages);
    }
}

/* A part of a region: the whole, an end, or something inside. */
static void any_part(struct worker *w, const struct region *region, size_t *from, size_t *pages)
{
    *from = below(w, 3) ? below(w, region->pages) : 0;
    *pages = below(w, 3) ? 1 + below(w, region->pages - *from) : region->pages - *from;
}

/* What the model says about a byte of a region: 0, or the signal and code of an access. */
static int expected_signal(const struct worker *w, const struct region *region, size_t offset, bool store,
                           int *code)
{
    size_t file_offset = region->file_page * PAGE + offset;
    if (!(region->prot & (store ? PROT_WRITE : PROT_READ))) {
        *code = SEGV_ACCERR;
        return SIGSEGV;
    }
    *code = BUS_ADRERR;
    return file_offset < page_up(w->size) ? 0 : SIGBUS;
}

static void set_size(struct worker *w, size_t size)
{
    if (size < w->size)
        memset(w->shadow + size, 0, w->size - size);
    w->size = size;
}

/* ---- what is compared ---- */

static void compare(struct worker *w, const struct region *region, size_t offset, size_t n)
{
    size_t file_offset = region->file_page * PAGE + offset;
    if (!(region->prot & PROT_READ) || file_offset >= page_up(w->size))
        return;
    if (file_offset + n > page_up(w->size))
        n = page_up(w->size) - file_offset;
    const uint8_t *seen = region->at + offset, *right = w->shadow + file_offset;
    if (memcmp(seen, right, n) == 0)
        return;
    for (size_t i = 0; i < n; i++)
        EXPECT(seen[i] == right[i],
               "at file offset %#zx (size %#zx), address %p of %p + %zu pages, rights %#x, "
               "there is %#x instead of %#x",
               file_offset + i, w->size, seen + i, region->at, region->pages, region->prot, seen[i],
               right[i]);
    EXPECT(false, "the bytes at file offset %#zx changed while they were compared", file_offset);
}

static void compare_read(struct worker *w, size_t at, size_t n)
{
    if (at >= w->size)
        return;
    if (n > w->size - at)
        n = w->size - at;
    ssize_t got = 0;
    struct iovec parts[2] = {{w->bytes, n / 2}, {w->bytes + n / 2, n - n / 2}};
    switch (below(w, 3)) {
    case 0:
        got = pread(w->fd, w->bytes, n, (off_t)at);
        break;
    case 1:
        SYS(lseek(w->fd, (off_t)at, SEEK_SET));
        got = read(w->fd, w->bytes, n);
        break;
    default:
        got = preadv(w->fd, parts, 2, (off_t)at);
    }
    EXPECT(got == (ssize_t)n, "a read of %zu bytes at %#zx gave %zd: %s", n, at, got, strerror(errno));
    for (size_t i = 0; i < n; i++)
        EXPECT(w->bytes[i] == w->shadow[at + i], "a read at file offset %#zx gave %#x instead of %#x", at + i,
               w->bytes[i], w->shadow[at + i]);
}

#endif
