/* Random operations of every kind against a model in plain memory.
 *   soak PREFIX SEED THREADS SECONDS MIB
 *
 * Each thread has a file of its own, PREFIX.0, PREFIX.1, ..., of about MIB MiB, which it alone changes, so
 * its model is exact: a shadow of the file's bytes and a list of regions that says what is mapped where with
 * which rights. All threads also share PREFIX.common, in which each owns every THREADS-th stripe of 40 bytes.
 * At the end every file is compared with its shadow, and its checksum is printed, in the form of `pattern
 * sum`, for who wants to look from outside. */
#include "soak_model.h"
#include <spawn.h>

extern char **environ;

static const char *prefix;
static unsigned threads;
static int common_fd;
static uint8_t *common[2];
static _Atomic bool stop;

/* ---- operations: each changes the world and the model alike ---- */

static void do_load(struct worker *w)
{
    struct region *region = any_region(w);
    if (!region)
        return;
    size_t offset = below(w, region->pages * PAGE);
    size_t n = 1 + below(w, below(w, 4) ? 2000 : MOST);
    if (n > region->pages * PAGE - offset)
        n = region->pages * PAGE - offset;
    compare(w, region, offset, n);
}

static void do_scan(struct worker *w)
{
    struct region *region = any_region(w);
    if (!region)
        return;
    if (below(w, 2)) {
        compare(w, region, 0, region->pages * PAGE);
        return;
    }
    for (size_t page = region->pages; page-- > 0;)
        compare(w, region, page * PAGE + below(w, PAGE - 64), 64);
}

static void do_store(struct worker *w)
{
    struct region *region = any_region(w);
    if (!region || !(region->prot & PROT_WRITE))
        return;
    size_t offset = below(w, region->pages * PAGE), file_offset = region->file_page * PAGE + offset;
    size_t n = 1 + below(w, below(w, 4) ? 200 : MOST);
    if (file_offset >= w->size)
        return;
    if (n > region->pages * PAGE - offset)
        n = region->pages * PAGE - offset;
    if (n > w->size - file_offset)
        n = w->size - file_offset;
    pattern_fill(rng_next(&w->rng), file_offset, w->shadow + file_offset, n);
    memcpy(region->at + offset, w->shadow + file_offset, n);
    if (below(w, 4) == 0)
        compare_read(w, file_offset, n);
}

static void do_probe(struct worker *w)
{
    struct region *region = any_region(w);
    if (!region)
        return;
    size_t offset = below(w, region->pages * PAGE), file_offset = region->file_page * PAGE + offset;
    bool store = below(w, 2);
    int code, sig = expected_signal(w, region, offset, store, &code);
    if (sig == 0 && store && file_offset >= w->size)
        return; /* the tail of the last page: allowed, but the model has no place for it */
    uint8_t value = (uint8_t)rng_next(&w->rng), loaded = 0;
    struct outcome seen =
        store ? probe_store(region->at + offset, value) : probe_load(region->at + offset, &loaded);
    EXPECT(seen.sig == sig &&
               (sig == 0 || (seen.code == code && seen.addr == (uintptr_t)(region->at + offset))),
           "a %s at %p (file offset %#zx, size %#zx, rights %d) raised signal %d, code %d, address %#lx "
           "instead of signal %d, code %d",
           store ? "store" : "load", region->at + offset, file_offset, w->size, region->prot, seen.sig,
           seen.code, (unsigned long)seen.addr, sig, code);
    if (sig == 0 && store)
        w->shadow[file_offset] = value;
    if (sig == 0 && !store)
        EXPECT(loaded == w->shadow[file_offset], "file offset %#zx is %#x instead of %#x", file_offset,
               loaded, w->shadow[file_offset]);
}

static int any_prot(struct worker *w)
{
    static const int PROTS[] = {PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE,
                                PROT_READ | PROT_WRITE};
    return PROTS[below(w, 4)];
}

static void do_map(struct worker *w)
{
    make_room(w);
    size_t pages = below(w, 3) ? 256 + below(w, w->most / PAGE) : 1 + below(w, 600);
    size_t file_page = below(w, 2) ? 0 : below(w, w->most / PAGE);
    int prot = any_prot(w);
    int flags = MAP_SHARED;
    if (file_page + pages > w->most / PAGE)
        pages = w->most / PAGE - file_page;
    if (below(w, 8) == 0)
        flags |= MAP_POPULATE;
    struct region *over = below(w, 4) ? NULL : any_region(w);
    uint8_t *at = NULL;
    if (over) {
        size_t from, room;
        any_part(w, over, &from, &room);
        at = over->at + from * PAGE;
        pages = room < pages ? room : pages;
        flags |= MAP_FIXED;
    }
    /* What is private is not writable here, so that its bytes are the file's, also when the file changes.
     * That is more than POSIX promises, and holds for mappings that are large enough to be managed. */
    if (prot == PROT_READ && pages > 256 && below(w, 3) == 0)
        flags ^= MAP_SHARED ^ MAP_PRIVATE;
    uint8_t *got = mmap(at, pages * PAGE, prot, flags, w->fd, (off_t)(file_page * PAGE));
    EXPECT(got != MAP_FAILED && (!at || got == at), "mmap of %zu pages gave %p: %s", pages, got,
           strerror(errno));
    if (at)
        carve(w, got, pages);
    add(w, got, pages, file_page, prot | (flags & MAP_PRIVATE ? 0x100 : 0));
    compare(w, &w->regions[w->count - 1], below(w, pages) * PAGE, PAGE);
}

static void do_unmap(struct worker *w)
{
    make_room(w);
    struct region *region = any_region(w);
    if (!region)
        return;
    size_t from, pages;
    any_part(w, region, &from, &pages);
    uint8_t *at = region->at + from * PAGE;
    EXPECT(munmap(at, pages * PAGE) == 0, "munmap: %s", strerror(errno));
    carve(w, at, pages);
}

static void do_protect(struct worker *w)
{
    make_room(w);
    struct region *region = any_region(w);
    if (!region)
        return;
    size_t from, pages;
    any_part(w, region, &from, &pages);
    int private = region->prot & 0x100, prot = private ? PROT_READ : any_prot(w);
    if (below(w, 5) == 0)
        prot = PROT_NONE;
    uint8_t *at = region->at + from * PAGE;
    size_t file_page = region->file_page + from;
    EXPECT(mprotect(at, pages * PAGE, prot) == 0, "mprotect: %s", strerror(errno));
    carve(w, at, pages);
    add(w, at, pages, file_page, prot | private);
}

static void do_remap(struct worker *w)
{
    make_room(w);
    struct region *region = any_region(w);
    if (!region)
        return;
    struct region old = *region;
    size_t pages = 1 + below(w, 2 * old.pages);
    if (old.file_page + pages > w->most / PAGE)
        pages = w->most / PAGE - old.file_page;
    uint8_t *got = mremap(old.at, old.pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    EXPECT(got != MAP_FAILED, "mremap from %zu to %zu pages: %s", old.pages, pages, strerror(errno));
    carve(w, old.at, old.pages);
    add(w, got, pages, old.file_page, old.prot);
    compare(w, &w->regions[w->count - 1], 0, pages * PAGE);
}

static void do_sync(struct worker *w)
{
    struct region *region = any_region(w);
    if (!region)
        return;
    size_t from, pages;
    any_part(w, region, &from, &pages);
    EXPECT(msync(region->at + from * PAGE, pages * PAGE, below(w, 2) ? MS_SYNC : MS_ASYNC) == 0, "msync: %s",
           strerror(errno));
    if (below(w, 8) == 0)
        EXPECT(fdatasync(w->fd) == 0, "fdatasync: %s", strerror(errno));
}

static void do_advise(struct worker *w)
{
    static const int ADVICE[] = {MADV_NORMAL,   MADV_RANDOM,   MADV_SEQUENTIAL,
                                 MADV_WILLNEED, MADV_DONTNEED, MADV_DONTNEED};
    struct region *region = any_region(w);
    if (!region)
        return;
    size_t from, pages;
    any_part(w, region, &from, &pages);
    int advice = ADVICE[below(w, 6)];
    if (advice != MADV_DONTNEED && advice != MADV_WILLNEED) {
        /* For the whole: mremap refuses a region of two advices. */
        from = 0;
        pages = region->pages;
    }
    EXPECT(madvise(region->at + from * PAGE, pages * PAGE, advice) == 0, "madvise: %s", strerror(errno));
    compare(w, region, from * PAGE, pages * PAGE < MOST ? pages * PAGE : MOST);
}

static void do_resident(struct worker *w)
{
    static __thread unsigned char vector[16384];
    struct region *region = any_region(w);
    if (region && region->pages <= sizeof vector)
        EXPECT(mincore(region->at, region->pages * PAGE, vector) == 0, "mincore: %s", strerror(errno));
}

static void do_write(struct worker *w)
{
    size_t n = 1 + below(w, below(w, 4) ? 500 : MOST / 2), at = below(w, w->most - n);
    if (below(w, 4) && at + n > w->size)
        at = w->size > n ? below(w, w->size - n) : 0;
    pattern_fill(rng_next(&w->rng), at, w->bytes, n);
    struct iovec parts[2] = {{w->bytes, n / 2}, {w->bytes + n / 2, n - n / 2}};
    ssize_t done = 0;
    switch (below(w, 4)) {
    case 0:
        done = pwrite(w->fd, w->bytes, n, (off_t)at);
        break;
    case 1:
        done = pwritev(w->fd, parts, 2, (off_t)at);
        break;
    case 2:
        SYS(lseek(w->fd, (off_t)at, SEEK_SET));
        done = write(w->fd, w->bytes, n);
        break;
    default:
        SYS(lseek(w->fd, (off_t)at, SEEK_SET));
        done = writev(w->fd, parts, 2);
    }
    EXPECT(done == (ssize_t)n, "a write of %zu bytes gave %zd: %s", n, done, strerror(errno));
    memcpy(w->shadow + at, w->bytes, n);
    if (at + n > w->size)
        w->size = at + n;
}

static void do_read(struct worker *w)
{
    compare_read(w, below(w, w->most), 1 + below(w, MOST));
}

static void do_resize(struct worker *w)
{
    size_t size = below(w, 3) ? w->most - below(w, w->most / 4) : below(w, w->most);
    EXPECT(ftruncate(w->fd, (off_t)size) == 0, "ftruncate: %s", strerror(errno));
    set_size(w, size);
}

static void do_punch(struct worker *w)
{
    size_t n = 1 + below(w, MOST), at = below(w, w->most - n);
    int mode = below(w, 2) ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE;
    if (fallocate(w->fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)n) != 0) {
        EXPECT(errno == EOPNOTSUPP, "fallocate: %s", strerror(errno));
        return;
    }
    memset(w->shadow + at, 0, n);
}

/* A private mapping becomes writable, is stored to, and nobody else sees it. */
static void do_private(struct worker *w)
{
    size_t whole = w->size / PAGE;
    if (whole < 300)
        return;
    size_t pages = 257 + below(w, whole - 257), file_page = below(w, whole - pages + 1);
    uint8_t *at = mmap(NULL, pages * PAGE, PROT_READ, MAP_PRIVATE, w->fd, (off_t)(file_page * PAGE));
    EXPECT(at != MAP_FAILED, "mmap: %s", strerror(errno));
    struct region view = {at, pages, file_page, PROT_READ};
    compare(w, &view, below(w, pages) * PAGE, PAGE);
    size_t from = below(w, pages), n = 1 + below(w, pages - from);
    EXPECT(mprotect(at + from * PAGE, n * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect: %s",
           strerror(errno));
    compare(w, &view, 0, pages * PAGE);
    size_t where = from * PAGE + below(w, n * PAGE);
    uint8_t value = (uint8_t)(at[where] + 1);
    at[where] = value;
    EXPECT(at[where] == value, "a private store is lost");
    compare_read(w, file_page * PAGE + where, 1);
    EXPECT(munmap(at, pages * PAGE) == 0, "munmap: %s", strerror(errno));
}

static void do_reopen(struct worker *w)
{
    EXPECT(close(w->fd) == 0, "close: %s", strerror(errno));
    w->fd = (int)SYS(open(w->path, O_RDWR | O_CLOEXEC));
    EXPECT(file_size(w->fd) == w->size, "the file has %#llx bytes instead of %#zx",
           (unsigned long long)file_size(w->fd), w->size);
}

static void do_spawn(struct worker *w)
{
    char *arguments[] = {(char *)"true", NULL};
    pid_t child;
    int status, error = posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ);
    EXPECT(error == 0, "posix_spawn: %s", strerror(error));
    SYS(waitpid(child, &status, 0));
    EXPECT(status == 0, "true ended with wait status %#x", status);
}

/* Own stripes of the common file: stored or written, and compared by another way. */
static void do_common(struct worker *w)
{
    size_t stripes = COMMON / STRIPE / threads, first = below(w, stripes), n = 1 + below(w, 200);
    uint64_t values = rng_next(&w->rng);
    bool change = below(w, 3);
    for (size_t i = first; i < first + n && i < stripes; i++) {
        size_t at = (i * threads + w->id) * STRIPE;
        if (change) {
            pattern_fill(values, at, w->own + at, STRIPE);
            if (values % 8 == 0)
                pwrite_all(common_fd, w->own + at, STRIPE, at);
            else
                memcpy(common[values % 2] + at, w->own + at, STRIPE);
        }
        const uint8_t *seen = common[below(w, 2)] + at;
        if (below(w, 16) == 0) {
            pread_all(common_fd, w->bytes, STRIPE, at);
            seen = w->bytes;
        }
        EXPECT(!memcmp(seen, w->own + at, STRIPE), "the stripe at %#zx of the common file is wrong%s", at,
               seen == w->bytes ? " when read" : "");
    }
    if (below(w, 64) == 0)
        EXPECT(msync(common[0], COMMON, below(w, 2) ? MS_SYNC : MS_ASYNC) == 0, "msync: %s", strerror(errno));
}

static const struct operation {
    const char *name;
    void (*run)(struct worker *);
    unsigned weight;
} OPERATIONS[] = {
    {"load", do_load, 120},      {"scan", do_scan, 10},        {"store", do_store, 100},
    {"probe", do_probe, 60},     {"map", do_map, 20},          {"unmap", do_unmap, 10},
    {"protect", do_protect, 15}, {"remap", do_remap, 6},       {"sync", do_sync, 5},
    {"advise", do_advise, 10},   {"resident", do_resident, 3}, {"write", do_write, 30},
    {"read", do_read, 30},       {"resize", do_resize, 4},     {"punch", do_punch, 6},
    {"private", do_private, 4},  {"reopen", do_reopen, 3},     {"spawn", do_spawn, 1},
    {"common", do_common, 60},
};

static void step(struct worker *w)
{
    unsigned total = 0;
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
        total += OPERATIONS[i].weight;
    unsigned pick = (unsigned)below(w, total);
    const struct operation *operation = OPERATIONS;
    while (pick >= operation->weight) {
        pick -= operation->weight;
        operation++;
    }
    w->doing = operation->name;
    w->steps++;
    operation->run(w);
}

static void *work(void *argument)
{
    struct worker *w = argument;
    while (!stop)
        step(w);
    w->doing = "the end";
    while (w->count) {
        struct region last = w->regions[w->count - 1];
        compare(w, &last, 0, last.pages * PAGE);
        EXPECT(munmap(last.at, last.pages * PAGE) == 0, "munmap: %s", strerror(errno));
        w->count--;
    }
    for (size_t at = 0; at < w->size; at += MOST)
        compare_read(w, at, MOST);
    return NULL;
}

static void print_sum(const char *path, const uint8_t *bytes, size_t n)
{
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total = (total ^ bytes[i]) * 0x100000001b3u;
    printf("%s: %zu bytes, sum %016llx\n", path, n, (unsigned long long)total);
}

static struct worker *new_worker(unsigned id, size_t most)
{
    struct worker *w = calloc(1, sizeof *w);
    CHECK(w != NULL, "no memory");
    w->id = id;
    w->rng = rng_new(seed, id);
    w->doing = "the beginning";
    w->most = most;
    w->size = most - below(w, 9000);
    w->shadow = calloc(1, most + PAGE);
    w->own = calloc(1, COMMON);
    CHECK(w->shadow && w->own, "no memory");
    pattern_fill(seed, 0, w->shadow, w->size);
    char suffix[16];
    snprintf(suffix, sizeof suffix, ".%u", id);
    snprintf(w->path, sizeof w->path, "%s%s", prefix, suffix);
    w->fd = make_file(prefix, suffix, seed, w->size);
    return w;
}

int main(int argc, char **argv)
{
    CHECK(argc == 6, "usage: soak PREFIX SEED THREADS SECONDS MIB");
    prefix = argv[1];
    seed = strtoull(argv[2], NULL, 0);
    threads = (unsigned)atoi(argv[3]);
    double end = now_seconds() + atof(argv[4]);
    size_t most = (size_t)atoi(argv[5]) * MIB;
    CHECK(threads >= 1 && threads <= 16 && most >= 2 * MIB, "1 to 16 threads, at least 2 MiB");
    fprintf(stderr, "soak: seed %llu\n", (unsigned long long)seed);
    probe_install();
    common_fd = make_file(prefix, ".common", 0, 0);
    SYS(ftruncate(common_fd, COMMON));
    for (int i = 0; i < 2; i++)
        common[i] = map_file(common_fd, COMMON, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    struct worker *workers[16];
    pthread_t ids[16];
    for (unsigned i = 0; i < threads; i++)
        workers[i] = new_worker(i, most);
    for (unsigned i = 0; i < threads; i++)
        SPAWN(&ids[i], work, workers[i]);
    while (now_seconds() < end)
        sleep_ms(50);
    stop = true;
    uint8_t *all = calloc(1, COMMON);
    uint64_t steps = 0;
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        print_sum(workers[i]->path, workers[i]->shadow, workers[i]->size);
        for (size_t at = i * STRIPE; at + STRIPE <= COMMON; at += threads * STRIPE)
            memcpy(all + at, workers[i]->own + at, STRIPE);
        steps += workers[i]->steps;
    }
    CHECK(!memcmp(all, common[0], COMMON), "seed %llu: the common file is wrong in the end",
          (unsigned long long)seed);
    char path[4096];
    snprintf(path, sizeof path, "%s.common", prefix);
    print_sum(path, all, COMMON);
    fprintf(stderr, "soak: %llu steps\n", (unsigned long long)steps);
    return 0;
}
