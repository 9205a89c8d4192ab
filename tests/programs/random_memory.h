/* Steps of random.c: calls of the mmap family, loads and stores. */
#include "random.h"

/* ---- steps: mappings ---- */

static void forget_island(struct worker *w, int which)
{
    struct island *island = &w->islands[which];
    if (!island->at)
        return;
    put(w, " gone i%d", which);
    go(w);
    put_result(w, munmap(island->at, island->pages * PAGE));
    island->at = NULL;
    island->pages = 0;
}

static bool inside_region(const struct worker *w, const uint8_t *at)
{
    return at >= w->base && at < w->base + w->pages * PAGE;
}

/* A mapping whose place the kernel has chosen: looked at, then unmapped, kept, or moved into the region. */
static void settle(struct worker *w, uint8_t *at, size_t pages, const int8_t *files, int file)
{
    unsigned what = (unsigned)below(w, 100);
    int which = (int)below(w, ISLANDS);
    size_t page = some_page(w, pages < w->pages ? pages : w->pages);
    put(w, " = elsewhere");
    look(w, at, pages < 24 ? pages : 24);
    if (what < 40 && pages <= ISLAND_PAGES) {
        forget_island(w, which);
        struct island *island = &w->islands[which];
        *island = (struct island){.at = at, .pages = pages};
        if (files)
            memcpy(island->files, files, pages);
        else
            set_files(island->files, pages, file);
        put(w, " kept i%d", which);
    } else if (what < 65 && pages <= w->pages) {
        put(w, " back r%zu", page);
        go(w);
        void *to =
            mremap(at, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, w->base + page * PAGE);
        put_result(w, to == MAP_FAILED ? -1 : 0);
        if (to == MAP_FAILED) {
            put_result(w, munmap(at, pages * PAGE));
            set_files(w->files + page, pages, ANY_FILE);
        } else if (files) {
            memcpy(w->files + page, files, pages);
        } else {
            set_files(w->files + page, pages, file);
        }
    } else {
        put(w, " unmap");
        go(w);
        put_result(w, munmap(at, pages * PAGE));
    }
}

struct map_call {
    uint8_t *at;
    size_t len;
    int prot, flags, fd;
    off_t offset;
};

/* Private memory is stored to at once. The kernel joins memory that nobody has stored to with whatever lies
   beside the place that it has chosen; and whether that was stored to decides, once it is moved back, whether
   it is joined with its new neighbours, and so how mremap fails across their ends. */
static void begin_memory(const struct map_call *call, uint8_t *at)
{
    if (call->flags & MAP_PRIVATE && call->flags & MAP_ANONYMOUS && call->prot & PROT_WRITE)
        *(volatile uint8_t *)at = 0;
}

/* One thing of a call that makes it fail. */
static void spoil(struct worker *w, struct map_call *call, int slot)
{
    unsigned what = (unsigned)below(w, 10);
    put(w, " bad%u", what);
    switch (what) {
    case 0: call->fd = -1; call->flags &= ~MAP_ANONYMOUS; break;
    case 1: call->offset += 100; break;
    case 2: call->at += 8; call->flags = (call->flags & ~MAP_FIXED_NOREPLACE) | MAP_FIXED; break;
    case 3: call->len = 0; break;
    case 4: call->flags &= ~MAP_TYPE; break;
    case 5: call->flags = (call->flags & ~MAP_TYPE) | MAP_SHARED_VALIDATE | MAP_SYNC; break;
    case 6: call->len = SIZE_MAX - 5 * PAGE; break;
    case 7: call->offset = INT64_MAX & ~(off_t)(PAGE - 1); break;
    case 8: call->fd = w->pipe[0]; call->flags &= ~MAP_ANONYMOUS; break;
    default: /* No right: reading through O_WRONLY, or writing through O_RDONLY. */
        call->flags = (call->flags & ~(MAP_TYPE | MAP_ANONYMOUS)) | MAP_SHARED;
        call->prot = RW;
        call->fd = w->slots[slot == 7 ? 7 : ODD_READ_ONLY];
    }
}

static void step_map(struct worker *w)
{
    struct range to = region_range(w, REGION_PAGES);
    unsigned how = (unsigned)below(w, options.threads > 1 ? 80 : 100);
    bool shared = chance(w, 60), anonymous = chance(w, 35) && options.anonymous;
    int slot = (int)below(w, SLOTS), extra = 0;
    bool bad = chance(w, 6), odd = chance(w, 8);
    size_t cut = below(w, PAGE - 1);
    uint64_t page = some_file_page(w);
    if (chance(w, 20))
        extra = ONE_OF(w, MAP_POPULATE, MAP_POPULATE, MAP_NORESERVE, MAP_LOCKED, MAP_STACK, MAP_DENYWRITE,
                       MAP_POPULATE | MAP_NONBLOCK, MAP_32BIT);
    if (!options.locks)
        extra &= ~MAP_LOCKED;
    if (shared && !anonymous && w->slot_file[slot] == ODD_FILE)
        slot = ODD_READ_ONLY;
    int file = anonymous ? NO_FILE : w->slot_file[slot];
    struct map_call call = {.at = to.at, .len = to.pages * PAGE - (odd ? cut : 0), .prot = some_prot(w)};
    call.flags = (shared ? MAP_SHARED : MAP_PRIVATE) | (anonymous ? MAP_ANONYMOUS : 0) | extra;
    call.flags |= how < 70 ? MAP_FIXED : how < 80 ? MAP_FIXED_NOREPLACE : 0;
    call.fd = anonymous ? -1 : w->slots[slot];
    call.offset = anonymous ? 0 : (off_t)(page * PAGE);
    if (how >= 90)
        call.at = NULL;
    put(w, "%s%s%s", how < 70 ? " fixed" : how < 80 ? " noreplace" : how < 90 ? " hint" : " free",
        shared ? " shared" : " private", anonymous ? " anonymous" : "");
    put_range(w, &to);
    if (!anonymous)
        put(w, " s%d/f%d@%llu", slot, file, (unsigned long long)page);
    if (bad)
        spoil(w, &call, slot);
    put(w, " prot %d flags %#x len %#zx", call.prot, call.flags, call.len);
    go(w);
    uint8_t *at = call_mmap(w, call.at, call.len, call.prot, call.flags, call.fd, call.offset);
    if (at == MAP_FAILED) {
        put_result(w, -1);
    } else if (at == call.at) {
        put(w, " = there");
        begin_memory(&call, at);
        set_files(to.files, to.pages, file);
    } else {
        if (inside_region(w, at)) {
            /* In a hole of it: any place is right, but here it would be in the way. */
            SYS(munmap(at, call.len));
            at = mmap(NULL, REGION_PAGES * PAGE + call.len, call.prot, call.flags & ~MAP_POPULATE, call.fd,
                      call.offset);
            CHECK(at != MAP_FAILED, "mapping more of it: %s", strerror(errno));
            SYS(munmap(at + to.pages * PAGE, REGION_PAGES * PAGE));
            /* MAP_NONBLOCK beside MAP_POPULATE: nothing is brought. */
            if ((call.flags & (MAP_POPULATE | MAP_NONBLOCK)) == MAP_POPULATE)
                madvise(at, call.len,
                        call.prot & PROT_WRITE && !shared ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
        }
        begin_memory(&call, at);
        settle(w, at, to.pages, NULL, file);
        return;
    }
    if (chance(w, 50))
        look(w, to.at, to.pages);
}

static void step_unmap(struct worker *w)
{
    struct range range = region_range(w, REGION_PAGES);
    unsigned bad = (unsigned)below(w, 40);
    size_t len = range.pages * PAGE - (chance(w, 8) ? below(w, PAGE - 1) : 0);
    if (chance(w, 10)) {
        forget_island(w, (int)below(w, ISLANDS));
        return;
    }
    put_range(w, &range);
    put(w, bad == 0 ? " misaligned" : bad == 1 ? " nothing" : bad == 2 ? " wraps" : "");
    go(w);
    size_t asked = bad == 1 ? 0 : bad == 2 ? SIZE_MAX - PAGE : len;
    int result = call_munmap(w, range.at + (bad == 0 ? 8 : 0), asked);
    put_result(w, result);
    if (result == 0)
        set_files(range.files, range.pages, NO_FILE);
    if (chance(w, 40))
        look(w, range.at, range.pages);
}

static void step_protect(struct worker *w)
{
    struct range range = any_range(w, REGION_PAGES);
    int prot = some_prot(w);
    unsigned bad = (unsigned)below(w, 50);
    bool with_key = chance(w, 5), after = chance(w, 50);
    size_t len = range.pages * PAGE - (chance(w, 8) ? below(w, PAGE - 1) : 0);
    put_range(w, &range);
    put(w, " prot %d%s%s", prot, with_key ? " key" : "",
        bad == 0 ? " misaligned" : bad == 1 ? " wraps" : bad == 2 ? " unknown" : "");
    if (!range.at)
        return;
    go(w);
    uint8_t *at = range.at + (bad == 0 ? 8 : 0);
    len = bad == 1 ? SIZE_MAX - 3 * PAGE : len;
    prot |= bad == 2 ? 0x40000000 : 0;
    put_result(w, with_key ? pkey_mprotect(at, len, prot, -1) : call_mprotect(w, at, len, prot));
    if (after)
        look(w, range.at, range.pages);
}

/* What a call of mremap asks for, and the name of its kind. */
struct remap_call {
    const char *name;
    size_t old, new;
    int flags;
    bool fixed, hint;
};

static struct remap_call some_remap(struct worker *w, const struct range *from, size_t room,
                                    size_t target_room)
{
    size_t old = from->pages * PAGE, changed = some_pages(w, REGION_PAGES) * PAGE;
    size_t fits = changed < room * PAGE ? changed : room * PAGE;
    size_t fits_target = changed < target_room * PAGE ? changed : target_room * PAGE;
    int move = MREMAP_MAYMOVE, fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    unsigned how = (unsigned)below(w, 100);
    old -= chance(w, 5) ? below(w, PAGE - 1) : 0;
    if (how < 18)
        return (struct remap_call){"in-place", old, fits, 0, false, false};
    if (how < 36)
        return (struct remap_call){"may-move", old, fits, move, false, false};
    if (how < 66)
        return (struct remap_call){"fixed", old, old, fixed, true, false};
    if (how < 76)
        return (struct remap_call){"fixed-resize", old, fits_target, fixed, true, false};
    if (how < 84)
        return (struct remap_call){"keep-fixed", old, old, fixed | MREMAP_DONTUNMAP, true, false};
    if (how < 86)
        return (struct remap_call){"keep", old, old, move | MREMAP_DONTUNMAP, false, false};
    if (how < 88) /* The kernel takes an address without MREMAP_FIXED for a hint. */
        return (struct remap_call){"keep-hint", old, old, move | MREMAP_DONTUNMAP, false, true};
    if (how < 92)
        return (struct remap_call){"second", 0, from->pages * PAGE, move, false, false};
    if (how < 96)
        return (struct remap_call){"second-fixed", 0, fits_target, fixed, true, false};
    switch (below(w, 5)) {
    case 0: return (struct remap_call){"fixed-only", old, old, MREMAP_FIXED, true, false};
    case 1: return (struct remap_call){"to-nothing", old, 0, move, false, false};
    case 2: return (struct remap_call){"unknown", old, old, move | 64, false, false};
    case 3: return (struct remap_call){"keep-resize", old, old + PAGE, move | MREMAP_DONTUNMAP, false, false};
    default: return (struct remap_call){"huge", old, SIZE_MAX - 9 * PAGE, move, false, false};
    }
}

/* Whether nothing is mapped at the pages. */
static bool all_free(const uint8_t *at, size_t pages)
{
    unsigned char resident;
    for (size_t i = 0; i < pages; i++)
        if (mincore((uint8_t *)at + i * PAGE, PAGE, &resident) == 0 || errno != ENOMEM)
            return false;
    return true;
}

static void step_remap(struct worker *w)
{
    struct range from = any_range(w, 800), to = region_range(w, 1);
    struct island *island = from.at && from.island >= 0 ? &w->islands[from.island] : NULL;
    if (island) /* Wholly: what the kernel maps next could be in a hole of it. */
        from = (struct range){island->at, island->pages, 0, from.island, island->files};
    size_t target_room = w->pages - to.page;
    size_t room = from.island < 0 ? w->pages - from.page : from.pages;
    if (from.at && from.pages > target_room) {
        to.page = w->pages - from.pages;
        to.at = w->base + to.page * PAGE;
        target_room = from.pages;
    }
    struct remap_call call = some_remap(w, &from, room ? room : 1, target_room);
    bool misaligned = chance(w, 2), after = chance(w, 60);
    put(w, " %s", call.name);
    put_range(w, &from);
    put(w, " new %zu", (call.new + PAGE - 1) / PAGE);
    if (call.fixed || call.hint)
        put(w, " to r%zu%s", to.page, misaligned ? " misaligned" : "");
    if (!from.at || (options.threads > 1 && !call.fixed && call.flags & MREMAP_MAYMOVE))
        return;
    go(w);
    size_t old = (call.old + PAGE - 1) / PAGE, new = (call.new + PAGE - 1) / PAGE;
    uint8_t *target = call.fixed || call.hint ? to.at + (call.fixed && misaligned ? 8 : 0) : NULL;
    bool may_grow = !island && call.flags == MREMAP_MAYMOVE && new > old && old > 0;
    bool room_behind = may_grow && all_free(from.at + old * PAGE, new - old);
    uint8_t *at = call_mremap(w, from.at, call.old, call.new, call.flags, target);
    /* Whether what may move grows where it is is not promised: Elbowroom moves it if the kernel has got pages
       behind it, as after an access to what is not mapped. */
    if (room_behind && at != MAP_FAILED && at != from.at)
        at = mremap(at, new * PAGE, new * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, from.at);
    int8_t files[ISLAND_PAGES];
    set_files(files, sizeof files, from.files[0]);
    memcpy(files, from.files, old < from.pages ? old : from.pages);
    bool keeps = call.old == 0 || call.flags & MREMAP_DONTUNMAP;
    if (at == MAP_FAILED) {
        put_result(w, -1);
        if (call.fixed)
            set_files(w->files + to.page, new < target_room ? new : target_room, ANY_FILE);
        if (island && call.fixed)
            forget_island(w, from.island);
        if (after && call.fixed)
            look(w, to.at, new < 64 && new < target_room ? new : 1);
    } else if (at == from.at) {
        put(w, " = there");
        for (size_t i = old; i < new; i++)
            from.files[i] = from.files[0];
        if (new < old && !island)
            set_files(from.files + new, old - new, NO_FILE);
        if (island)
            island->pages = new < old ? new : old;
    } else {
        if (!keeps)
            set_files(from.files, from.pages, NO_FILE);
        if (!keeps && island)
            *island = (struct island){.at = NULL};
        if (call.fixed || at == target) {
            put(w, at == to.at ? " = moved" : " = astray");
            memcpy(w->files + to.page, files, new);
            if (after)
                look(w, to.at, new < 64 ? new : 64);
        } else {
            if (inside_region(w, at)) {
                /* More than any hole of the region has room for. */
                size_t rest = REGION_PAGES * PAGE;
                uint8_t *room =
                    mmap(NULL, new * PAGE + rest, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                CHECK(room != MAP_FAILED, "no room: %s", strerror(errno));
                SYS(munmap(room + new * PAGE, rest));
                at = mremap(at, new * PAGE, new * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
                CHECK(at == room, "moving on: %s", strerror(errno));
            }
            settle(w, at, new, new <= ISLAND_PAGES ? files : NULL, ANY_FILE);
        }
    }
    if (after && (!island || (island->at == from.at && island->pages)))
        look(w, from.at, from.pages < 64 && !island ? from.pages : 1);
}

static void step_advise(struct worker *w)
{
    struct range range = any_range(w, 800);
    int advice =
        ONE_OF(w, MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_DONTNEED,
               MADV_DONTNEED, MADV_DONTNEED, MADV_REMOVE, MADV_REMOVE, MADV_COLD, MADV_PAGEOUT, MADV_PAGEOUT,
               MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_POPULATE_WRITE, MADV_DONTFORK, MADV_DOFORK,
               MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, MADV_WIPEONFORK, MADV_KEEPONFORK,
               MADV_DONTNEED_LOCKED, 99);
    unsigned how = (unsigned)below(w, 40);
    bool after = chance(w, 40);
    put_range(w, &range);
    put(w, " advice %d%s", advice,
        how == 0 ? " misaligned" : how == 1 ? " nothing" : how == 2 ? " wraps" : how < 5 ? " posix" : "");
    if (!range.at)
        return;
    go(w);
    size_t len = how == 1 ? 0 : how == 2 ? SIZE_MAX - 3 * PAGE : range.pages * PAGE;
    if (how == 3 || how == 4)
        put_result(w, posix_madvise(range.at, len, advice % 5));
    else
        put_result(w, call_madvise(w, range.at + (how == 0 ? 8 : 0), len, advice));
    if (after)
        look(w, range.at, range.pages);
}

static void step_guard(struct worker *w)
{
    struct range range = any_range(w, 16);
    int advice = chance(w, 40) ? ADVICE_GUARD_INSTALL : ADVICE_GUARD_REMOVE;
    put_range(w, &range);
    put(w, advice == ADVICE_GUARD_INSTALL ? " install" : " remove");
    if (!range.at)
        return;
    go(w);
    put_result(w, madvise(range.at, range.pages * PAGE, advice));
    look(w, range.at, range.pages);
}

static void step_sync(struct worker *w)
{
    struct range range = any_range(w, REGION_PAGES);
    int flags = ONE_OF(w, MS_ASYNC, MS_ASYNC, MS_ASYNC, MS_SYNC, MS_ASYNC | MS_INVALIDATE, MS_INVALIDATE, 0,
                       MS_ASYNC | MS_SYNC, 64);
    bool misaligned = chance(w, 3);
    put_range(w, &range);
    put(w, " flags %d%s", flags, misaligned ? " misaligned" : "");
    if (!range.at)
        return;
    go(w);
    put_result(w, msync(range.at + (misaligned ? 8 : 0), range.pages * PAGE, flags));
}

/* Which pages are in memory is nobody's promise: whether it can be said is. */
static void step_resident(struct worker *w)
{
    struct range range = any_range(w, 800);
    bool misaligned = chance(w, 3);
    put_range(w, &range);
    put(w, "%s", misaligned ? " misaligned" : "");
    if (!range.at)
        return;
    go(w);
    w->buffer[range.pages] = 0xa5;
    put_result(w, mincore(range.at + (misaligned ? 8 : 0), range.pages * PAGE, w->buffer));
    put(w, w->buffer[range.pages] == 0xa5 ? "" : " beyond");
}

static void step_lock(struct worker *w)
{
    struct range range = any_range(w, 64);
    unsigned how = (unsigned)below(w, 10);
    size_t inside = chance(w, 10) ? below(w, PAGE) : 0;
    put_range(w, &range);
    put(w, how < 4 ? " lock" : how < 6 ? " on-fault" : how < 9 ? " unlock" : " unknown");
    if (!range.at)
        return;
    go(w);
    uint8_t *at = range.at + inside;
    size_t len = range.pages * PAGE - inside;
    put_result(w, how < 4   ? mlock(at, len)
                  : how < 6 ? mlock2(at, len, MLOCK_ONFAULT)
                  : how < 9 ? munlock(at, len)
                            : mlock2(at, len, 8));
}

static void step_rearrange(struct worker *w)
{
    struct range range = any_range(w, 40);
    uint64_t page = some_file_page(w);
    put_range(w, &range);
    put(w, " @%llu", (unsigned long long)page);
    if (!range.at)
        return;
    go(w);
    put_result(w, remap_file_pages(range.at, range.pages * PAGE, 0, page, 0));
    look(w, range.at, range.pages);
}

/* ---- steps: loads and stores ---- */

__attribute__((noinline)) static void touch(struct worker *w, uint8_t *at, size_t len, bool store,
                                            uint64_t value)
{
    volatile uint64_t sum = 0;
    probe_seen = (struct outcome){0, 0, 0};
    w->moved = 0;
    if (sigsetjmp(probe_jump, 0) == 0) {
        probe_active = 1;
        while (w->moved < len) {
            volatile uint8_t *byte = at + w->moved;
            if ((uintptr_t)byte % 8 == 0 && len - w->moved >= 8) {
                volatile uint64_t *word = (volatile uint64_t *)(volatile void *)byte;
                if (store)
                    *word = pattern_word(value, w->moved);
                else
                    sum = mix(sum ^ *word);
                w->moved += 8;
            } else {
                if (store)
                    *byte = pattern_byte(value, w->moved);
                else
                    sum = mix(sum ^ *byte);
                w->moved++;
            }
        }
    }
    probe_active = 0;
    if (!store)
        put(w, " %08x", (unsigned)sum);
    put(w, " %zu done", w->moved);
    put_seen(w);
}

static void step_touch(struct worker *w)
{
    struct range range = any_range(w, 6);
    bool store = chance(w, 55), run = chance(w, 30);
    size_t from = below(w, PAGE), end = below(w, PAGE) + 1;
    uint64_t value = rng_next(&w->rng);
    put_range(w, &range);
    put(w, store ? " store" : " load");
    if (!range.at)
        return;
    size_t len = run ? (range.pages - 1) * PAGE + end : 1;
    if (run && range.pages == 1 && from + len > PAGE)
        len = PAGE - from;
    if (run && range.pages > 1)
        len -= from;
    put(w, " .%zu %zu", from, len);
    go(w);
    touch(w, range.at + from, len, store, value);
}

/* Word by word from one place to the other: both may fault. */
static void step_copy(struct worker *w)
{
    struct range from = any_range(w, 4), to = any_range(w, 4);
    put_range(w, &from);
    put_range(w, &to);
    if (!from.at || !to.at)
        return;
    go(w);
    volatile size_t words = (from.pages < to.pages ? from.pages : to.pages) * PAGE / 8;
    probe_seen = (struct outcome){0, 0, 0};
    w->moved = 0;
    volatile uint64_t *source = (volatile void *)from.at, *target = (volatile void *)to.at;
    if (sigsetjmp(probe_jump, 0) == 0) {
        probe_active = 1;
        for (; w->moved < words; w->moved += 8)
            target[w->moved] = source[w->moved] + 1;
    }
    probe_active = 0;
    put(w, " %zu done", w->moved);
    put_seen(w);
}

static void press(struct worker *w)
{
    uint64_t sum = 0;
    for (int i = 0; i < 96; i++)
        sum = mix(sum ^ w->pressure[below(w, (BIG_PAGES - REGION_PAGES) * PAGE)]);
    put(w, " %08x", (unsigned)sum);
}

static void step_pressure(struct worker *w)
{
    put(w, " 96");
    go(w);
    press(w);
}
