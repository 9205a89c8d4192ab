/* Steps of random.c: calls of the mmap family by libc's syscall(), as programs make them that go past the
 * functions of libc. */
#include "random.h"

#define CALL_MSEAL 462

/* In a child, since what is sealed stays sealed for good: each call says what it says there. */
static void seal(struct worker *w)
{
    size_t pages = 64 + below(w, OWN_PAGES - 64), from = below(w, pages), count = 1 + below(w, pages - from);
    uint64_t value = rng_next(&w->rng);
    int output[2];
    put(w, " seal %zu:%zu of %zu", from, count, pages);
    go(w);
    uint8_t *at = own_memory(w, pages);
    if (!at)
        return;
    pattern_fill(value, 0, at, pages * PAGE);
    SYS(pipe2(output, O_CLOEXEC));
    pid_t pid = (pid_t)SYS(fork());
    if (pid == 0) {
        w->transcript = output[1];
        uint8_t *sealed = at + from * PAGE;
        put_result(w, syscall(CALL_MSEAL, sealed, count * PAGE, 0));
        put_result(w, mprotect(sealed, PAGE, PROT_READ));
        put_result(w, munmap(sealed, count * PAGE));
        void *moved = mremap(sealed, count * PAGE, (count + 1) * PAGE, MREMAP_MAYMOVE);
        put_result(w, moved == MAP_FAILED ? -1 : 0);
        put_result(w, madvise(sealed, PAGE, MADV_DONTNEED));
        look(w, at, pages);
        go(w);
        _exit(7);
    }
    put(w, " = %#x", hear_child(w, pid, output));
    look(w, at, pages);
    own_end(w);
}

static void step_raw(struct worker *w)
{
    static const struct {
        const char *name;
        void (*run)(struct worker *);
    } steps[] = {
        {"advise", step_advise}, {"unmap", step_unmap}, {"map", step_map},
        {"protect", step_protect}, {"remap", step_remap},
    };
    if (chance(w, 2)) {
        seal(w);
        return;
    }
    size_t which = below(w, COUNT(steps));
    if (left_out(steps[which].name))
        return;
    put(w, " %s", steps[which].name);
    w->raw = true;
    steps[which].run(w);
    w->raw = false;
}
