/* What the parts of random.c share: a worker and its transcript, looking at memory and files, random
 * choices. */
#ifndef RANDOM_H
#define RANDOM_H

#include "common.h"
#include <liburing.h>
#include <linux/aio_abi.h>
#include <spawn.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define REGION_PAGES ((size_t)4096)
#define BIG_PAGES ((size_t)10240)
#define FILES 4
#define ODD_FILE 3 /* of any size, and never mapped for stores */
#define SLOTS 10
#define ISLANDS 4
#define ISLAND_PAGES 1000
#define FILE_PAGES 1000
#define BUFFER (256 * KIB)
#define TRANSFER_FILE FILES /* for transfers by io_uring and aio; never mapped */
#define TRANSFER_PAGES 256
#define MUTEX_FILE (FILES + 1) /* mapped by the steps that end threads */
#define OWN_PAGES ((size_t)512)
#define BLOCKS 4
#define HOT_STEPS 512
#define HOT_PAGES 96
#define NO_FILE (-1)
#define ANY_FILE 127
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif
#define ADVICE_GUARD_INSTALL 102
#define ADVICE_GUARD_REMOVE 103
#define RW (PROT_READ | PROT_WRITE)
#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct {
    uint64_t seed, steps, every;
    unsigned threads;
    bool anonymous, verbose, locks;
    const char *dir, *big, *without, *only, *self;
} options = {.steps = 1000, .every = 1000, .threads = 1, .anonymous = true, .without = "", .dir = ".",
             .big = "big", .locks = true};

/* The descriptors of a thread: which file, and how it is opened. */
static const struct {
    int file, flags;
} slot_modes[SLOTS] = {
    {0, O_RDWR}, {0, O_RDONLY}, {0, O_RDWR | O_APPEND}, {1, O_RDWR},        {1, O_RDWR},
    {1, O_RDONLY}, {2, O_RDWR}, {2, O_WRONLY},          {ODD_FILE, O_RDWR}, {ODD_FILE, O_RDONLY},
};
#define ODD_READ_ONLY 9

/* A mapping that the kernel has placed. */
struct island {
    uint8_t *at;
    size_t pages;
    int8_t files[ISLAND_PAGES];
};

/* How a worker asks the kernel for transfers that go on while it does something else. */
struct transfers {
    struct io_uring ring;
    aio_context_t aio;
    int direct, buffered;
};

/* A block of malloc that stays from step to step. */
struct block {
    uint8_t *at;
    size_t pages;
};

struct worker {
    unsigned id;
    uint64_t step;
    struct rng rng;
    uint8_t *base;
    size_t pages;
    const uint8_t *pressure;
    /* Addresses for mappings that end with their step; nothing else is ever placed there. */
    uint8_t *own;
    /* Calls of the mmap family go through syscall(). */
    bool raw;
    /* Nothing is written to the transcript: a limit of the process could be in the way. */
    bool muted;
    struct transfers transfers;
    struct block blocks[BLOCKS];
    /* Which file each page may show. */
    int8_t files[REGION_PAGES];
    int slots[SLOTS], slot_file[SLOTS];
    struct island islands[ISLANDS];
    int pair[2], pipe[2];
    int transcript;
    size_t used;
    char text[1 << 14];
    uint8_t buffer[BUFFER] __attribute__((aligned(4096)));
    /* What a look at memory has found. */
    volatile size_t look_page, look_ok, look_bad[4];
    volatile uint64_t look_hash;
    volatile size_t moved;
};

/* Pages of the region or of an island. */
struct range {
    uint8_t *at;
    size_t pages, page;
    int island;
    int8_t *files;
};

/* ---- the transcript ---- */

__attribute__((format(printf, 2, 3))) static void put(struct worker *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->text + w->used, sizeof w->text - w->used, format, args);
    va_end(args);
    w->used += (size_t)n;
    if (w->used >= sizeof w->text)
        w->used = sizeof w->text - 1;
}

/* Before a call: should it not come back, the transcript says which it was. */
static void go(struct worker *w)
{
    if (w->muted)
        return;
    for (size_t done = 0; done < w->used;)
        done += (size_t)SYS(syscall(SYS_write, w->transcript, w->text + done, w->used - done));
    w->used = 0;
}

/* Puts all that a child writes to its end of a pipe, until it ends. The result is its status. */
static unsigned hear_child(struct worker *w, pid_t pid, const int output[2])
{
    int status;
    char text[1024];
    close(output[1]);
    for (ssize_t n; (n = read(output[0], text, sizeof text)) > 0; go(w))
        put(w, "%.*s", (int)n, text);
    close(output[0]);
    SYS(waitpid(pid, &status, 0));
    return (unsigned)status;
}

static void put_range(struct worker *w, const struct range *range)
{
    if (range->island < 0)
        put(w, " r%zu:%zu", range->page, range->pages);
    else
        put(w, " i%d+%zu:%zu", range->island, range->page, range->pages);
}

/* An address as page and byte of what it belongs to. */
static void put_address(struct worker *w, uintptr_t at)
{
    size_t offset = at - (uintptr_t)w->base;
    if (offset < w->pages * PAGE) {
        put(w, " r%zu.%zu", offset / PAGE, offset % PAGE);
        return;
    }
    for (int i = 0; i < ISLANDS; i++) {
        offset = at - (uintptr_t)w->islands[i].at;
        if (offset < w->islands[i].pages * PAGE) {
            put(w, " i%d+%zu.%zu", i, offset / PAGE, offset % PAGE);
            return;
        }
    }
    put(w, " elsewhere.%zu", at % PAGE);
}

static void put_result(struct worker *w, long result)
{
    int error = errno;
    if (result >= 0)
        put(w, " = %ld", result);
    else
        put(w, " = %s", error ? strerrorname_np(error) : "?");
    errno = error;
}

static void put_seen(struct worker *w)
{
    if (probe_seen.sig == 0)
        return;
    put(w, " %s %d", probe_seen.sig == SIGSEGV ? "SEGV" : "BUS", probe_seen.code);
    put_address(w, probe_seen.addr);
}

/* ---- looking at memory and at files ---- */

static uint64_t sum_bytes(const uint8_t *at, size_t len, uint64_t sum)
{
    uint64_t word, rest = 0;
    size_t words = len / 8;
    sum = mix(sum ^ len);
    for (size_t i = 0; i < words; i++) {
        memcpy(&word, at + i * 8, 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    memcpy(&rest, at + words * 8, len % 8);
    return mix(sum ^ rest);
}

__attribute__((noinline)) static uint64_t sum_page(const uint8_t *at)
{
    const uint64_t *word = (const uint64_t *)(const void *)at;
    uint64_t a = 0, b = 1, c = 2, d = 3;
    for (size_t i = 0; i < PAGE / 8; i += 4) {
        a = (a ^ word[i]) * 0x9e3779b97f4a7c15u;
        b = (b ^ word[i + 1]) * 0xbf58476d1ce4e5b9u;
        c = (c ^ word[i + 2]) * 0x94d049bb133111ebu;
        d = (d ^ word[i + 3]) * 0x2545f4914f6cdd1du;
    }
    __asm__ volatile("" ::: "memory");
    return mix(a ^ mix(b ^ mix(c ^ mix(d))));
}

static const uint8_t zeros[4096] __attribute__((aligned(4096)));

/* Reads pages; those that cannot be read count with the signal that they raise. */
__attribute__((noinline)) static void read_pages(struct worker *w, const uint8_t *at, size_t pages)
{
    static const char names[] = "MABP?";
    if (sigsetjmp(probe_jump, 0)) {
        unsigned kind = probe_seen.sig == SIGBUS ? 2 : probe_seen.code == SEGV_MAPERR ? 0 :
                        probe_seen.code == SEGV_ACCERR                                 ? 1 : 3;
        w->look_bad[kind]++;
        w->look_hash = mix(w->look_hash ^ mix((uint64_t)probe_seen.sig << 32 ^ (uint64_t)probe_seen.code));
        if (probe_seen.addr != (uintptr_t)(at + w->look_page * PAGE)) {
            put(w, " wrong");
            put_address(w, probe_seen.addr);
        }
        if (options.verbose)
            put(w, "%c", names[kind]);
        w->look_page++;
    }
    probe_active = 1;
    while (w->look_page < pages) {
        uint64_t sum = sum_page(at + w->look_page * PAGE);
        w->look_hash = mix(w->look_hash ^ sum);
        w->look_ok++;
        if (options.verbose)
            sum == sum_page(zeros) ? put(w, "0") : put(w, "(%04x)", (unsigned)sum & 0xffff);
        w->look_page++;
        if (w->look_page % 512 == 0) { /* A look at much memory: that it gets on is seen. */
            put(w, ".");
            go(w);
        }
    }
    probe_active = 0;
}

static void look(struct worker *w, const uint8_t *at, size_t pages)
{
    w->look_page = w->look_ok = w->look_hash = 0;
    for (size_t i = 0; i < COUNT(w->look_bad); i++)
        w->look_bad[i] = 0;
    put(w, " [");
    go(w);
    read_pages(w, at, pages);
    if (w->look_ok)
        put(w, "%zu ok ", w->look_ok);
    for (size_t i = 0; i < COUNT(w->look_bad); i++)
        if (w->look_bad[i])
            put(w, "%zu%c ", w->look_bad[i], "MABP"[i]);
    put(w, "%08x]", (unsigned)w->look_hash);
}

static uint64_t size_of(int fd)
{
    struct stat stat;
    return fstat(fd, &stat) == 0 ? (uint64_t)stat.st_size : 0;
}

static int file_path(char *path, size_t room, const struct worker *w, int file)
{
    return snprintf(path, room, "%s/t%u.f%d", options.dir, w->id, file);
}

/* The bytes of a file by its name: size and sum. */
static void sum_file(struct worker *w, int file)
{
    char path[4096];
    file_path(path, sizeof path, w, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t sum = 0, at = 0;
    ssize_t n = -1;
    while (fd >= 0 && (n = pread(fd, w->buffer, BUFFER, (off_t)at)) > 0) {
        sum = mix(sum ^ sum_bytes(w->buffer, (size_t)n, 0));
        at += (uint64_t)n;
    }
    put(w, " f%d=%llu:%08x", file, (unsigned long long)at, (unsigned)sum);
    if (n < 0)
        put_result(w, n);
    if (fd >= 0)
        close(fd);
}

/* The bytes of a part of a file by a descriptor. */
static void sum_part(struct worker *w, int fd, uint64_t offset, size_t len)
{
    ssize_t n = pread(fd, w->buffer, len < BUFFER ? len : BUFFER, (off_t)offset);
    put(w, " part");
    put_result(w, n);
    if (n > 0)
        put(w, ":%08x", (unsigned)sum_bytes(w->buffer, (size_t)n, 0));
}

/* ---- calls of the mmap family, by libc's function or by syscall() ---- */

static void *call_mmap(const struct worker *w, void *at, size_t len, int prot, int flags, int fd,
                       off_t offset)
{
    return w->raw ? (void *)syscall(SYS_mmap, at, len, prot, flags, fd, offset)
                  : mmap(at, len, prot, flags, fd, offset);
}

static int call_munmap(const struct worker *w, void *at, size_t len)
{
    return w->raw ? (int)syscall(SYS_munmap, at, len) : munmap(at, len);
}

static int call_mprotect(const struct worker *w, void *at, size_t len, int prot)
{
    return w->raw ? (int)syscall(SYS_mprotect, at, len, prot) : mprotect(at, len, prot);
}

static void *call_mremap(const struct worker *w, void *at, size_t old, size_t new, int flags, void *to)
{
    return w->raw ? (void *)syscall(SYS_mremap, at, old, new, flags, to) : mremap(at, old, new, flags, to);
}

static int call_madvise(const struct worker *w, void *at, size_t len, int advice)
{
    return w->raw ? (int)syscall(SYS_madvise, at, len, advice) : madvise(at, len, advice);
}

/* ---- choices ---- */

/* Whether the options leave out the kind of step. */
static bool left_out(const char *name)
{
    size_t len = strlen(name);
    for (const char *at = options.without; (at = strstr(at, name)); at += len)
        if ((at == options.without || at[-1] == ',') && (at[len] == ',' || at[len] == 0))
            return true;
    return false;
}

static uint64_t below(struct worker *w, uint64_t bound)
{
    return rng_below(&w->rng, bound);
}

static bool chance(struct worker *w, unsigned percent)
{
    return below(w, 100) < percent;
}

#define ONE_OF(w, ...)                                                                                       \
    ({                                                                                                       \
        static const int one_of[] = {__VA_ARGS__};                                                           \
        one_of[below(w, COUNT(one_of))];                                                                     \
    })

static size_t some_pages(struct worker *w, size_t most)
{
    size_t which = below(w, 100);
    size_t pages = 1 + below(w, which < 40 ? 4 : which < 75 ? 12 : which < 96 ? 40 : 640);
    return pages < most ? pages : most;
}

/* A page so that `pages` fit: mostly near others of its time, often a round one, so that ranges meet. */
static size_t some_page(struct worker *w, size_t pages)
{
    size_t room = w->pages - pages + 1;
    size_t hot = mix(options.seed + w->step / HOT_STEPS) % room;
    size_t page = chance(w, 75) ? hot + below(w, HOT_PAGES) : below(w, room);
    page = page < room ? page : room - 1;
    return chance(w, 50) ? page & ~(size_t)7 : page;
}

static struct range region_range(struct worker *w, size_t most)
{
    size_t pages = some_pages(w, most < w->pages ? most : w->pages);
    size_t page = some_page(w, pages);
    return (struct range){w->base + page * PAGE, pages, page, -1, w->files + page};
}

/* Mostly of the region; `at` is NULL for an island that is not there. */
static struct range any_range(struct worker *w, size_t most)
{
    struct range range = region_range(w, most);
    bool of_island = chance(w, 15);
    int which = (int)below(w, ISLANDS);
    size_t page = below(w, ISLAND_PAGES), pages = range.pages;
    struct island *island = &w->islands[which];
    if (!of_island)
        return range;
    if (!island->at)
        return (struct range){NULL, 0, 0, which, NULL};
    page %= island->pages;
    pages = pages < island->pages - page ? pages : island->pages - page;
    return (struct range){island->at + page * PAGE, pages, page, which, island->files + page};
}

static int some_prot(struct worker *w)
{
    return ONE_OF(w, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, RW, PROT_READ,
                  PROT_READ, PROT_READ, PROT_READ, PROT_NONE, PROT_NONE, PROT_WRITE, PROT_READ | PROT_EXEC,
                  PROT_EXEC, RW | PROT_EXEC);
}

/* Memory for one step, or NULL if there may be none: MAP_FIXED in the worker's own addresses. */
static uint8_t *own_memory(struct worker *w, size_t pages)
{
    CHECK(pages <= OWN_PAGES, "more pages than the worker has addresses for");
    if (!options.anonymous)
        return NULL;
    return (uint8_t *)SYS(mmap(w->own, pages * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
}

/* The own addresses are reserved again. */
static void own_end(struct worker *w)
{
    SYS(mmap(w->own, OWN_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0));
}

static uint64_t some_file_page(struct worker *w)
{
    return chance(w, 60) ? below(w, 48) : below(w, FILE_PAGES + 40);
}

/* Any byte of a file, often near the begin of a page. */
static uint64_t some_file_offset(struct worker *w)
{
    return some_file_page(w) * PAGE + (chance(w, 50) ? 0 : below(w, PAGE));
}

static size_t some_bytes(struct worker *w)
{
    size_t most = ONE_OF(w, 16, 4096, 4096, 16384, 16384, 131072);
    return 1 + below(w, most);
}

/* Whether a call may read or write the file while it also uses this memory. */
static bool apart(const struct range *range, size_t pages, int file)
{
    for (size_t i = 0; i < pages; i++)
        if (range->files[i] == file || range->files[i] == ANY_FILE)
            return false;
    return true;
}

/* Whether it shows no page of the workers' files. */
static bool without_files(const struct range *range)
{
    for (size_t i = 0; i < range->pages; i++)
        if (range->files[i] != NO_FILE)
            return false;
    return true;
}

static void set_files(int8_t *files, size_t pages, int file)
{
    memset(files, file, pages);
}

/* A whole number of pages again, so that no store ever goes behind the end in the last page. */
static void settle_size(struct worker *w, int slot)
{
    uint64_t size = size_of(w->slots[slot]);
    if (w->slot_file[slot] != ODD_FILE && size % PAGE) {
        put(w, " whole");
        put_result(w, ftruncate(w->slots[slot], (off_t)((size + PAGE - 1) & ~(PAGE - 1))));
    }
    put(w, " size %llu", (unsigned long long)size);
}

#endif
