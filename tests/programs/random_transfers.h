/* Steps of random.c: transfers by io_uring and aio between memory and a file that is never mapped. They go on
 * while the worker does something else. */
#include "random.h"

#define PIECES 4

struct transfer {
    struct range range;
    bool into, direct, fixed, elsewhere, vector;
    size_t pieces;
    off_t offset;
};

static void begin_transfers(struct worker *w)
{
    char path[4096];
    file_path(path, sizeof path, w, TRANSFER_FILE);
    struct transfers *transfers = &w->transfers;
    transfers->buffered = make_file(path, "", mix(options.seed + 99), TRANSFER_PAGES * PAGE);
    transfers->direct = (int)SYS(open(path, O_RDWR | O_DIRECT | O_CLOEXEC));
    /* The seed decides which of the kernel's threads reaches for the memory. */
    static const unsigned flags[] = {0, IORING_SETUP_SQPOLL, IORING_SETUP_COOP_TASKRUN};
    struct io_uring_params params = {.flags = flags[mix(options.seed + 98) % 3], .sq_thread_idle = 1};
    int error = io_uring_queue_init_params(8, &transfers->ring, &params);
    CHECK(error == 0, "io_uring_queue_init: %s", strerror(-error));
    SYS(syscall(SYS_io_setup, 8, &transfers->aio));
}

/* Whether each page can be read and, where that is asked, stored to. */
static bool accessible(const struct range *range, bool store)
{
    for (size_t page = 0; page < range->pages; page++) {
        char byte;
        struct iovec local = {&byte, 1}, remote = {range->at + page * PAGE, 1};
        if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1)
            return false;
        if (store && process_vm_writev(getpid(), &local, 1, &remote, 1, 0) != 1)
            return false;
    }
    return true;
}

/* Whether no two pages are the same memory: in what order parts of a transfer go to one page is nobody's
 * promise. Changes the first byte of each. */
static bool all_different(const struct range *range)
{
    for (size_t page = 0; page < range->pages; page++)
        range->at[page * PAGE] = (uint8_t)page;
    for (size_t page = 0; page < range->pages; page++)
        if (range->at[page * PAGE] != (uint8_t)page)
            return false;
    return true;
}

/* A part of new memory of the step's own. */
static struct range own_range(struct worker *w)
{
    static int8_t none[OWN_PAGES];
    uint8_t *at = own_memory(w, OWN_PAGES);
    size_t page = below(w, OWN_PAGES - 64);
    struct range range = {.at = at, .pages = 1 + below(w, 64), .page = page, .island = -1};
    if (!at)
        return range;
    range.at += page * PAGE;
    pattern_fill(rng_next(&w->rng), 0, range.at, range.pages * PAGE);
    set_files(none, OWN_PAGES, NO_FILE);
    range.files = none;
    return range;
}

static struct transfer some_transfer(struct worker *w, bool aio)
{
    struct transfer t = {.range = any_range(w, 48), .into = chance(w, 50), .direct = chance(w, 60)};
    if (chance(w, 35))
        t.range = own_range(w);
    t.fixed = chance(w, 40) && !aio;
    t.elsewhere = chance(w, 30) && !aio;
    t.vector = chance(w, 30);
    t.pieces = 1 + below(w, PIECES);
    t.offset = (off_t)(below(w, TRANSFER_PAGES) * PAGE);
    if (!t.range.at)
        return t;
    /* Memory is registered for stores, which the kernel denies to the pages of files. */
    t.fixed = t.fixed && without_files(&t.range) && accessible(&t.range, true);
    bool safe = accessible(&t.range, t.into) && (!t.into || all_different(&t.range));
    if (!safe) {
        t.direct = t.fixed = false;
        t.pieces = 1;
    }
    t.pieces = t.pieces < t.range.pages ? t.pieces : t.range.pages;
    return t;
}

/* The piece of the memory, in two parts; a file's piece is where the memory's is. */
static size_t piece_of(const struct transfer *t, size_t i, struct iovec parts[2])
{
    size_t from = t->range.pages * i / t->pieces, end = t->range.pages * (i + 1) / t->pieces;
    size_t middle = (from + end) / 2;
    parts[0] = (struct iovec){t->range.at + from * PAGE, (middle - from) * PAGE};
    parts[1] = (struct iovec){t->range.at + middle * PAGE, (end - middle) * PAGE};
    return from * PAGE;
}

/* While transfers are under way: other memory is used, and sometimes a child is made. That is left out with
 * the step that forks: where private memory goes to the kernel before a fork, what is pinned cannot go. The
 * child looks at no memory that a transfer stores to meanwhile, by its own addresses or by other ones. */
static void meanwhile(struct worker *w, const struct transfer *t)
{
    if (chance(w, 60))
        press(w);
    if (chance(w, 5) && !left_out("fork")) {
        struct views views = {.count = 1};
        struct range *view = &views.ranges[0];
        *view = region_range(w, 8);
        bool apart = view->at + view->pages * PAGE <= t->range.at ||
                     t->range.at + t->range.pages * PAGE <= view->at;
        put_range(w, view);
        if (!t->into || (apart && without_files(&t->range)))
            fork_and_look(w, &views);
    }
}

static void ring_round(struct worker *w, const struct transfer *t, int fd, long results[PIECES])
{
    struct io_uring *ring = &w->transfers.ring;
    struct iovec parts[PIECES][2], whole[PIECES];
    for (size_t i = 0; i < t->pieces; i++) {
        piece_of(t, i, parts[i]);
        whole[i] = (struct iovec){parts[i][0].iov_base, parts[i][0].iov_len + parts[i][1].iov_len};
    }
    for (size_t i = 0; i < t->pieces; i++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
        uint64_t at = (uint64_t)t->offset + piece_of(t, i, parts[i]);
        void *base = whole[i].iov_base;
        unsigned len = (unsigned)whole[i].iov_len;
        if (t->fixed)
            t->into ? io_uring_prep_read_fixed(sqe, fd, base, len, at, (int)i)
                    : io_uring_prep_write_fixed(sqe, fd, base, len, at, (int)i);
        else if (t->vector)
            t->into ? io_uring_prep_readv(sqe, fd, parts[i], 2, at)
                    : io_uring_prep_writev(sqe, fd, parts[i], 2, at);
        else
            t->into ? io_uring_prep_read(sqe, fd, base, len, at)
                    : io_uring_prep_write(sqe, fd, base, len, at);
        if (t->elsewhere)
            sqe->flags |= IOSQE_ASYNC;
        sqe->user_data = i;
    }
    int submitted = io_uring_submit(ring);
    /* A thread of the kernel that takes the requests may not have noted yet that it took the ones before:
     * liburing counts these, too. */
    bool counts_more = ring->flags & IORING_SETUP_SQPOLL;
    CHECK(counts_more ? submitted >= (int)t->pieces : submitted == (int)t->pieces, "io_uring_submit gave %d",
          submitted);
    meanwhile(w, t);
    for (size_t i = 0; i < t->pieces; i++) {
        struct io_uring_cqe *cqe;
        int error;
        while ((error = io_uring_wait_cqe(ring, &cqe)) == -EINTR)
            ;
        CHECK(error == 0, "io_uring_wait_cqe: %s", strerror(-error));
        results[cqe->user_data] = cqe->res;
        io_uring_cqe_seen(ring, cqe);
    }
}

/* Buffers stay registered while their memory is used and others take its room. */
static void registered_rounds(struct worker *w, const struct transfer *t, int fd, long results[PIECES])
{
    struct io_uring *ring = &w->transfers.ring;
    struct iovec parts[2], buffers[PIECES];
    for (size_t i = 0; i < t->pieces; i++) {
        piece_of(t, i, parts);
        buffers[i] = (struct iovec){parts[0].iov_base, parts[0].iov_len + parts[1].iov_len};
    }
    int error = io_uring_register_buffers(ring, buffers, (unsigned)t->pieces);
    if (error) {
        put(w, " not registered: %s", strerrorname_np(-error));
        return;
    }
    for (size_t rounds = 1 + below(w, 3); rounds > 0; rounds--) {
        uint8_t *page = t->range.at + below(w, t->range.pages) * PAGE;
        pattern_fill(rng_next(&w->rng), 0, page, PAGE);
        if (chance(w, 50))
            madvise(t->range.at, t->range.pages * PAGE, MADV_PAGEOUT);
        if (chance(w, 50))
            press(w);
        ring_round(w, t, fd, results);
        if (rounds > 1)
            look(w, t->range.at, t->range.pages);
    }
    CHECK(io_uring_unregister_buffers(ring) == 0, "io_uring_unregister_buffers");
}

static void ring_transfer(struct worker *w, const struct transfer *t, int fd, long results[PIECES])
{
    (t->fixed ? registered_rounds : ring_round)(w, t, fd, results);
}

static void aio_transfer(struct worker *w, const struct transfer *t, int fd, long results[PIECES])
{
    struct iovec parts[PIECES][2];
    struct iocb blocks[PIECES] = {0}, *list[PIECES];
    struct io_event events[PIECES];
    for (size_t i = 0; i < t->pieces; i++) {
        size_t at = piece_of(t, i, parts[i]);
        struct iocb *block = list[i] = &blocks[i];
        block->aio_fildes = (unsigned)fd;
        block->aio_offset = t->offset + (off_t)at;
        block->aio_data = i;
        block->aio_lio_opcode = t->vector ? (t->into ? IOCB_CMD_PREADV : IOCB_CMD_PWRITEV)
                                          : (t->into ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE);
        block->aio_buf = (uint64_t)(uintptr_t)(t->vector ? (void *)parts[i] : parts[i][0].iov_base);
        block->aio_nbytes = t->vector ? 2 : parts[i][0].iov_len + parts[i][1].iov_len;
    }
    long submitted = syscall(SYS_io_submit, w->transfers.aio, t->pieces, list);
    if (submitted != (long)t->pieces)
        put_result(w, submitted);
    meanwhile(w, t);
    for (long got = 0; got < submitted;) {
        long n = syscall(SYS_io_getevents, w->transfers.aio, 1, submitted - got, events, NULL);
        CHECK(n >= 0 || errno == EINTR, "io_getevents: %s", strerror(errno));
        for (long i = 0; i < n; i++)
            results[events[i].data] = (long)events[i].res;
        got += n > 0 ? n : 0;
    }
}

static void transfer(struct worker *w, bool aio)
{
    struct transfer t = some_transfer(w, aio);
    bool out = chance(w, 60);
    long results[PIECES] = {0};
    put_range(w, &t.range);
    if (!t.range.at)
        return;
    put(w, " %s%s%s%s%s %zu @%lld", t.into ? "into" : "from", t.direct ? " direct" : "",
        t.fixed ? " registered" : t.vector ? " vector" : "", t.elsewhere ? " elsewhere" : "",
        out ? " out" : "", t.pieces, (long long)t.offset);
    go(w);
    if (out)
        madvise(t.range.at, t.range.pages * PAGE, MADV_PAGEOUT);
    int fd = t.direct ? w->transfers.direct : w->transfers.buffered;
    (aio ? aio_transfer : ring_transfer)(w, &t, fd, results);
    for (size_t i = 0; i < t.pieces; i++)
        if (results[i] < 0)
            put(w, " = %s", strerrorname_np((int)-results[i]));
        else
            put(w, " = %ld", results[i]);
    if (t.into)
        look(w, t.range.at, t.range.pages);
    else
        sum_part(w, w->transfers.buffered, (uint64_t)t.offset, t.range.pages * PAGE);
    own_end(w);
}

static void step_ring(struct worker *w)
{
    transfer(w, false);
}

static void step_aio(struct worker *w)
{
    transfer(w, true);
}
