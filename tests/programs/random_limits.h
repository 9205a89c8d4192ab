/* Steps of random.c: limits that the program sets for itself, and blocks of malloc whose mapping it changes.
 * Only with one worker: limits are those of the process, and the kernel chooses the place of blocks. */
#include "random.h"
#include <sys/resource.h>

#define LIMIT_PAGES 128

/* Mappings that the kernel places. Those that are made are gone again. */
static void map_under_limit(struct worker *w)
{
    static const struct {
        const char *name;
        int prot, flags;
        bool of_file;
    } maps[] = {
        {"memory", RW, MAP_PRIVATE | MAP_ANONYMOUS, false},
        {"readable", PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, false},
        {"shared-memory", RW, MAP_SHARED | MAP_ANONYMOUS, false},
        {"private", RW, MAP_PRIVATE, true},
        {"private-readable", PROT_READ, MAP_PRIVATE, true},
        {"shared", PROT_READ, MAP_SHARED, true},
        {"unreserved", RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, false},
    };
    size_t len = (64 + below(w, 640)) * PAGE, which = below(w, COUNT(maps));
    int fd = maps[which].of_file ? w->transfers.buffered : -1;
    put(w, " %s %zu", maps[which].name, len / PAGE);
    go(w);
    void *at = mmap(NULL, len, maps[which].prot, maps[which].flags, fd, 0);
    put_result(w, at == MAP_FAILED ? -1 : 0);
    if (at != MAP_FAILED)
        put_result(w, munmap(at, len));
}

/* The child has the limit, too. */
static void fork_under_limit(struct worker *w, uint8_t *memory)
{
    if (!memory || chance(w, 85))
        return;
    struct views views = {.count = 1, .stores = chance(w, 50)};
    views.ranges[0] = (struct range){.at = memory, .pages = LIMIT_PAGES};
    fork_and_look(w, &views);
}

static void space_limit(struct worker *w, uint8_t *memory)
{
    bool all = chance(w, 50);
    struct rlimit limit, kept;
    int which = all ? RLIMIT_AS : RLIMIT_DATA;
    SYS(getrlimit(which, &kept));
    limit = (struct rlimit){(1 + below(w, 4)) * PAGE, kept.rlim_max};
    put(w, " %s %lu", all ? "all" : "data", (unsigned long)limit.rlim_cur);
    go(w);
    put_result(w, setrlimit(which, &limit));
    for (size_t i = 1 + below(w, 4); i > 0; i--) {
        map_under_limit(w);
        if (chance(w, 50))
            press(w);
        if (chance(w, 50)) {
            struct range range = any_range(w, 8);
            if (range.at)
                look(w, range.at, range.pages);
        }
    }
    fork_under_limit(w, memory);
    put_result(w, getrlimit(which, &limit));
    put(w, " %lu", (unsigned long)limit.rlim_cur);
    put_result(w, setrlimit(which, &kept));
    map_under_limit(w);
}

static void size_limit(struct worker *w, uint8_t *memory)
{
    static void (*const steps[])(struct worker *) = {
        step_write, step_write, step_write_from, step_truncate, step_allocate, step_copy_files, step_stream,
        step_touch, step_pressure, step_sync, step_process_memory,
    };
    struct rlimit limit, kept;
    SYS(getrlimit(RLIMIT_FSIZE, &kept));
    limit = (struct rlimit){below(w, FILE_PAGES) * PAGE, kept.rlim_max};
    put(w, " size %lu", (unsigned long)limit.rlim_cur);
    go(w);
    w->muted = true;
    put_result(w, setrlimit(RLIMIT_FSIZE, &limit));
    for (size_t i = 1 + below(w, 3); i > 0; i--)
        steps[below(w, COUNT(steps))](w);
    fork_under_limit(w, memory);
    put_result(w, setrlimit(RLIMIT_FSIZE, &kept));
    w->muted = false;
}

static void step_limit(struct worker *w)
{
    if (options.threads > 1)
        return;
    uint8_t *memory = own_memory(w, LIMIT_PAGES);
    if (memory)
        pattern_fill(rng_next(&w->rng), 0, memory, LIMIT_PAGES * PAGE * 3 / 4);
    (chance(w, 50) ? size_limit : space_limit)(w, memory);
    own_end(w);
}

/* One change of the mapping that a block of malloc lies in. */
static void change_block(struct worker *w, uint8_t *at, size_t pages)
{
    struct range range = part_of(w, at, pages);
    size_t len = range.pages * PAGE;
    unsigned how = (unsigned)below(w, 20);
    put_range(w, &range);
    if (how < 5) {
        int prot = some_prot(w);
        put(w, " prot %d", prot);
        put_result(w, mprotect(range.at, len, prot));
    } else if (how < 14) {
        int advice = ONE_OF(w, MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTDUMP, MADV_NOHUGEPAGE, MADV_RANDOM,
                            MADV_DONTNEED, MADV_PAGEOUT, MADV_POPULATE_WRITE, ADVICE_GUARD_INSTALL);
        put(w, " advice %d", advice);
        put_result(w, madvise(range.at, len, advice));
    } else if (how < 17) {
        put(w, " hole");
        put_result(w, munmap(range.at, len));
    } else {
        int fd = w->transfers.buffered, flags = MAP_FIXED | (how == 17 ? MAP_SHARED : MAP_PRIVATE);
        put(w, how == 17 ? " shared" : " private");
        put_result(w, mmap(range.at, len, PROT_READ, flags, fd, 0) == MAP_FAILED ? -1 : 0);
    }
}

/* The whole pages of a block that has three more. */
static uint8_t *pages_of(void *block)
{
    return (uint8_t *)(((uintptr_t)block + 2 * PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

static bool reaches_region(const struct worker *w, const uint8_t *block, size_t len)
{
    return inside_region(w, block) || inside_region(w, block + len);
}

/* The block of so many bytes, beside the region. In a hole of it: any place is right, but here it would be in
 * the way. What is larger than any hole of the region goes elsewhere, and stays there when it shrinks. */
static void *beside_region(struct worker *w, void *block, size_t len)
{
    CHECK(block, "no memory");
    if (reaches_region(w, block, len)) {
        block = realloc(block, REGION_PAGES * PAGE + len);
        CHECK(block, "no memory");
        block = realloc(block, len);
        CHECK(block, "no memory");
    }
    CHECK(!reaches_region(w, block, len), "a block lies in the region");
    return block;
}

/* A block that other steps run beside: it changes its size, is looked at, or given back. */
static void step_keep_block(struct worker *w)
{
    struct block *block = &w->blocks[below(w, BLOCKS)];
    size_t pages = 64 + below(w, 300), kept = block->pages < pages ? block->pages : pages;
    unsigned how = (unsigned)below(w, 10);
    uint64_t value = rng_next(&w->rng);
    if (options.threads > 1)
        return;
    put(w, " %zu of %zu", pages, block->pages);
    go(w);
    if (how < 3 && block->at) {
        put(w, " free");
        free(block->at);
        *block = (struct block){NULL, 0};
        return;
    }
    if (how < 5 && block->at) {
        uint64_t sum = sum_bytes(block->at, block->pages * PAGE, 0);
        put(w, " %08x", (unsigned)sum);
        if (chance(w, 20)) {
            pid_t pid = (pid_t)SYS(fork());
            if (pid == 0)
                _exit(sum == sum_bytes(block->at, block->pages * PAGE, 0) ? 7 : 8);
            int status;
            SYS(waitpid(pid, &status, 0));
            put(w, " child %#x", (unsigned)status);
        }
        return;
    }
    uint8_t *at = beside_region(w, realloc(block->at, pages * PAGE), pages * PAGE);
    put(w, " %08x", (unsigned)sum_bytes(at, kept * PAGE, 0));
    pattern_fill(value, 0, at + kept * PAGE, (pages - kept) * PAGE);
    *block = (struct block){at, pages};
}

static void step_block(struct worker *w)
{
    size_t pages = 64 + below(w, 300), len = (pages + 3) * PAGE;
    uint64_t value = rng_next(&w->rng);
    if (options.threads > 1)
        return;
    put(w, " %zu", pages);
    go(w);
    void *block = beside_region(w, malloc(len), len);
    uint8_t *at = pages_of(block);
    pattern_fill(value, 0, at, pages * PAGE);
    for (size_t i = 1 + below(w, 3); i > 0; i--)
        change_block(w, at, pages);
    look(w, at, pages);
    free(block);
    /* What is given out next may lie where it was, and is as any block is. */
    void *next[3];
    size_t count = 1 + below(w, COUNT(next));
    for (size_t i = 0; i < count; i++) {
        bool zeroed = chance(w, 50);
        next[i] = beside_region(w, zeroed ? calloc(1, len) : malloc(len), len);
        at = pages_of(next[i]);
        if (zeroed)
            look(w, at, pages);
        pattern_fill(value + i, 0, at, pages * PAGE);
        look(w, at, pages);
    }
    if (chance(w, 25)) {
        struct views views = {.count = 1, .stores = true};
        views.ranges[0] = (struct range){.at = at, .pages = pages};
        fork_and_look(w, &views);
    }
    look(w, at, pages);
    for (size_t i = 0; i < count; i++)
        free(next[i]);
}
