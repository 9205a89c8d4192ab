/* Steps of random.c: what a child that only forks sees of memory after advice, changed rights and stores. */
#include "random.h"

#define VIEWS 3

/* The pages that a child looks at. */
struct views {
    struct range ranges[VIEWS];
    size_t count;
    bool stores, again;
};

static void fork_and_look(struct worker *w, struct views *views);

static void look_as_child(struct worker *w, struct views *views)
{
    for (size_t i = 0; i < views->count; i++)
        look(w, views->ranges[i].at, views->ranges[i].pages);
    if (views->stores) {
        struct range *first = &views->ranges[0];
        /* Not beyond the range: what lies there is another mapping, or none. */
        touch(w, first->at + below(w, PAGE / 2), first->pages * PAGE / 2, true, rng_next(&w->rng));
        look(w, first->at, first->pages);
    }
    if (views->again) {
        views->again = views->stores = false;
        fork_and_look(w, views);
    }
    go(w);
}

/* The child's transcript is what it writes to a pipe. It ends before its parent goes on, so that the order of
 * stores to what they share is always the same. */
static void fork_and_look(struct worker *w, struct views *views)
{
    int output[2];
    put(w, " child (");
    go(w);
    SYS(pipe2(output, O_CLOEXEC));
    pid_t pid = (pid_t)SYS(fork());
    if (pid == 0) {
        w->transcript = output[1];
        look_as_child(w, views);
        _exit(7);
    }
    put(w, ") = %#x", hear_child(w, pid, output));
}

static void advise_for_fork(struct worker *w, const struct range *range)
{
    int advice = ONE_OF(w, MADV_WIPEONFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_DONTFORK, MADV_DONTFORK,
                        MADV_DOFORK, MADV_DONTDUMP, MADV_DODUMP, MADV_COLD, MADV_PAGEOUT, MADV_PAGEOUT,
                        MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_DONTNEED, MADV_WILLNEED,
                        MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_RANDOM);
    put_range(w, range);
    put(w, " advice %d", advice);
    go(w);
    put_result(w, madvise(range->at, range->pages * PAGE, advice));
}

/* Memory that earlier steps have left. */
static void step_fork(struct worker *w)
{
    struct views views = {.stores = chance(w, 50), .again = chance(w, 20)};
    size_t count = 1 + below(w, VIEWS);
    for (size_t i = 0; i < count; i++) {
        struct range range = any_range(w, 100);
        if (!range.at)
            continue;
        advise_for_fork(w, &range);
        views.ranges[views.count++] = range;
    }
    if (!views.count)
        return;
    fork_and_look(w, &views);
    for (size_t i = 0; i < views.count; i++)
        look(w, views.ranges[i].at, views.ranges[i].pages);
}

static struct range part_of(struct worker *w, uint8_t *at, size_t pages)
{
    size_t from = below(w, pages), count = 1 + below(w, pages - from);
    return (struct range){.at = at + from * PAGE, .pages = count, .page = from, .island = -1};
}

/* Memory of the step's own, of which some pages were never stored to. */
static void step_fork_own(struct worker *w)
{
    size_t pages = 64 + below(w, OWN_PAGES - 64);
    uint8_t *at = own_memory(w, pages);
    if (!at)
        return;
    for (size_t page = 0; page < pages; page++)
        if (chance(w, 70))
            pattern_fill(rng_next(&w->rng), 0, at + page * PAGE, PAGE);
    if (chance(w, 50))
        press(w);
    for (size_t i = 1 + below(w, 5); i > 0; i--) {
        struct range range = part_of(w, at, pages);
        unsigned how = (unsigned)below(w, 10);
        if (how < 7) {
            advise_for_fork(w, &range);
        } else if (how < 9) {
            int prot = some_prot(w);
            put_range(w, &range);
            put(w, " prot %d", prot);
            put_result(w, mprotect(range.at, range.pages * PAGE, prot));
        } else {
            put_range(w, &range);
            put(w, " guards");
            put_result(w, madvise(range.at, range.pages * PAGE, ADVICE_GUARD_INSTALL));
        }
    }
    struct views views = {.count = 2, .stores = chance(w, 50), .again = chance(w, 30)};
    views.ranges[0] = part_of(w, at, pages);
    views.ranges[1] = (struct range){.at = at, .pages = pages};
    fork_and_look(w, &views);
    look(w, at, pages);
    own_end(w);
}
