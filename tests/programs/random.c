/* Random calls of the mmap family, loads, stores and file calls, with a transcript that is the same on every
 * correct system: addresses are relative, and nothing in it depends on time, process numbers or what happens
 * to be in memory.
 *   random seed=N steps=N dir=DIR [key=value ...]
 *     kinds=all|files   anonymous mappings too, or only those of files
 *     threads=N         each with a part of the region, files and a transcript (DIR/transcript.T) of its own
 *     every=N           every Nth step is a check of the whole region and of all files
 *     big=FILE          a file for the region to lie in, made if it is not there
 *     only=FILE         the steps to do, one "THREAD STEP" per line; the others are left out
 *     without=A,B,...   kinds of steps to leave out
 *     verbose=1         checks say what each page is
 *   random child MODE FILE OFFSET LENGTH SEED    what a child process does
 *
 * A step follows from seed, thread and number alone, so that leaving out one does not change what the others
 * ask for. It depends on the steps before it only by what the kernel answers, and where it must: no call
 * reads a file into a mapping of the same file, since what bytes that copies is nobody's promise. For the
 * same reason the files' sizes are whole pages wherever stores could go behind the end. */
#include "random.h"
#include "random_memory.h"
#include "random_files.h"
#include "random_forks.h"
#include "random_calls.h"
#include "random_transfers.h"
#include "random_ends.h"
#include "random_limits.h"
#include <malloc.h>

/* Everything that can be seen: the region, the islands and the files. */
static void step_check(struct worker *w)
{
    look(w, w->base, w->pages);
    for (int i = 0; i < ISLANDS; i++)
        if (w->islands[i].at) {
            put(w, " i%d", i);
            look(w, w->islands[i].at, w->islands[i].pages);
        }
    for (int file = 0; file <= TRANSFER_FILE; file++)
        sum_file(w, file);
    for (int slot = 0; slot < SLOTS; slot++)
        put(w, " %llu@%lld", (unsigned long long)size_of(w->slots[slot]),
            (long long)lseek(w->slots[slot], 0, SEEK_CUR));
}

static const struct {
    const char *name;
    void (*run)(struct worker *);
    unsigned weight;
} kinds[] = {
    {"touch", step_touch, 3000},        {"map", step_map, 1500},
    {"unmap", step_unmap, 300},         {"protect", step_protect, 600},
    {"remap", step_remap, 600},         {"advise", step_advise, 600},
    {"guard", step_guard, 30},          {"sync", step_sync, 100},
    {"resident", step_resident, 60},    {"lock", step_lock, 60},
    {"rearrange", step_rearrange, 20},  {"copy", step_copy, 300},
    {"pressure", step_pressure, 200},   {"reopen", step_reopen, 250},
    {"seek", step_seek, 100},           {"write", step_write, 500},
    {"write-from", step_write_from, 300}, {"read", step_read, 300},
    {"read-into", step_read_into, 300}, {"process-memory", step_process_memory, 60},
    {"truncate", step_truncate, 150},   {"allocate", step_allocate, 150},
    {"copy-files", step_copy_files, 150}, {"sparse", step_sparse, 30},
    {"flush", step_flush, 60},          {"stream", step_stream, 80},
    {"child", step_child, 8},           {"fork", step_fork, 8},
    {"fork-own", step_fork_own, 8},     {"raw", step_raw, 300},
    {"ring", step_ring, 100},           {"aio", step_aio, 60},
    {"end-thread", step_end_thread, 12}, {"block", step_block, 40},
    {"keep-block", step_keep_block, 60}, {"limit", step_limit, 60},
};

static void do_step(struct worker *w, uint64_t step)
{
    unsigned sum = 0, kind = 0;
    for (size_t i = 0; i < COUNT(kinds); i++)
        sum += kinds[i].weight;
    w->step = step;
    w->rng = rng_new(options.seed, (uint64_t)w->id << 32 | step);
    unsigned which = (unsigned)below(w, sum);
    bool check = step % options.every == options.every - 1;
    for (; which >= kinds[kind].weight; kind++)
        which -= kinds[kind].weight;
    if (left_out(check ? "check" : kinds[kind].name))
        return;
    put(w, "%llu %s", (unsigned long long)step, check ? "check" : kinds[kind].name);
    errno = 0;
    check ? step_check(w) : kinds[kind].run(w);
    put(w, "\n");
}

/* ---- the begin and the end of a worker ---- */

static void make_files(struct worker *w)
{
    char path[4096];
    for (int file = 0; file < FILES; file++) {
        size_t pages = below(w, FILE_PAGES / 2);
        file_path(path, sizeof path, w, file);
        close(make_file(path, "", mix(options.seed) + (uint64_t)file, pages * PAGE));
    }
    for (int slot = 0; slot < SLOTS; slot++) {
        w->slot_file[slot] = slot_modes[slot].file;
        file_path(path, sizeof path, w, w->slot_file[slot]);
        w->slots[slot] = (int)SYS(open(path, slot_modes[slot].flags | O_CLOEXEC));
    }
    file_path(path, sizeof path, w, MUTEX_FILE);
    close(make_file(path, "", 1, OWN_PAGES * PAGE));
    SYS(pipe2(w->pipe, O_CLOEXEC | O_NONBLOCK));
    SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, w->pair));
}

static struct worker *new_worker(unsigned id)
{
    char path[4096];
    struct worker *w = calloc(1, sizeof *w);
    CHECK(w, "no memory");
    w->id = id;
    w->rng = rng_new(options.seed, UINT64_MAX - id);
    set_files(w->files, REGION_PAGES, NO_FILE);
    snprintf(path, sizeof path, "%s/transcript.%u", options.dir, id);
    w->transcript = (int)SYS(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
    put(w, "begin\n");
    go(w);
    make_files(w);
    begin_transfers(w);
    begin_ends();
    w->own = mmap(NULL, OWN_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(w->own != MAP_FAILED, "no room: %s", strerror(errno));
    return w;
}

static void *work(void *argument)
{
    struct worker *w = argument;
    char line[64];
    FILE *only = options.only ? fopen(options.only, "re") : NULL;
    if (only) {
        unsigned thread;
        unsigned long long step;
        while (fgets(line, sizeof line, only))
            if (sscanf(line, "%u %llu", &thread, &step) == 2 && thread == w->id)
                do_step(w, step);
        fclose(only);
    } else {
        for (uint64_t step = 0; step < options.steps; step++)
            do_step(w, step);
    }
    put(w, "end ");
    step_check(w);
    put(w, "\n");
    go(w);
    return NULL;
}

/* The big file, made beside its place by whoever comes first. */
static int open_big(void)
{
    int fd = open(options.big, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        return fd;
    char suffix[32], made[4096];
    snprintf(suffix, sizeof suffix, ".%d", (int)getpid());
    snprintf(made, sizeof made, "%s%s", options.big, suffix);
    close(make_file(options.big, suffix, 1, BIG_PAGES * PAGE));
    SYS(rename(made, options.big));
    return (int)SYS(open(options.big, O_RDONLY | O_CLOEXEC));
}

/* Where the region begins, and what is in it. The seed decides: a part of a mapping of the big file, whole,
 * with holes, or but for its ends; or a range that the kernel has reserved. */
static uint8_t *make_region(const uint8_t **pressure)
{
    int fd = open_big();
    size_t len = BIG_PAGES * PAGE, room = REGION_PAGES * PAGE;
    unsigned how = (unsigned)(mix(options.seed ^ 77) % 5);
    /* Room above the region: what the kernel places goes there, not into holes of the region. */
    void *above = mmap(NULL, 1024 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(above != MAP_FAILED, "no room: %s", strerror(errno));
    uint8_t *at = map_file(fd, len, PROT_READ, how == 4 ? MAP_PRIVATE : MAP_SHARED, 0);
    *pressure = at + room;
    if (how == 0) {
        at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(at != MAP_FAILED, "no room: %s", strerror(errno));
    }
    SYS(munmap(above, 1024 * MIB));
    if (how == 1)
        for (size_t page = 256; page < REGION_PAGES; page += 512)
            SYS(munmap(at + page * PAGE, 256 * PAGE));
    if (how == 2)
        SYS(munmap(at + PAGE, room - 2 * PAGE));
    close(fd);
    return at;
}

/* A limit on addresses, which a step sets, would also end the stack's growth. */
__attribute__((noinline)) static void grow_stack(void)
{
    volatile uint8_t room[512 * KIB];
    for (size_t i = 0; i < sizeof room; i += PAGE)
        room[i] = 1;
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        CHECK(value, "%s has no value", argv[i]);
        *value++ = 0;
        const char *key = argv[i];
        uint64_t number = strtoull(value, NULL, 0);
        !strcmp(key, "seed") ? (void)(options.seed = number) :
        !strcmp(key, "steps") ? (void)(options.steps = number) :
        !strcmp(key, "every") ? (void)(options.every = number) :
        !strcmp(key, "threads") ? (void)(options.threads = (unsigned)number) :
        !strcmp(key, "kinds") ? (void)(options.anonymous = !strcmp(value, "all")) :
        !strcmp(key, "verbose") ? (void)(options.verbose = number != 0) :
        !strcmp(key, "dir") ? (void)(options.dir = value) :
        !strcmp(key, "big") ? (void)(options.big = value) :
        !strcmp(key, "only") ? (void)(options.only = value) :
        !strcmp(key, "without") ? (void)(options.without = value) :
        FAIL("there is no option %s", key);
    }
    options.locks = !left_out("lock");
}

int main(int argc, char **argv)
{
    if (argc == 7 && !strcmp(argv[1], "child"))
        return child_main(argv + 2);
    static char self[4096];
    SYS(readlink("/proc/self/exe", self, sizeof self - 1));
    options.self = self;
    parse(argc, argv);
    grow_stack();
    struct sigaction action = {.sa_sigaction = probe_handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    SYS(sigaction(SIGSEGV, &action, NULL));
    SYS(sigaction(SIGBUS, &action, NULL));
    SYS(signal(SIGXFSZ, SIG_IGN) == SIG_ERR ? -1 : 0); /* What a step writes beyond a limit fails. */
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 * KIB) == 1, "mallopt"); /* Large blocks are mappings. */
    CHECK(options.threads >= 1 && options.threads <= 8 && options.every > 0, "an impossible option");

    pthread_t threads[8];
    struct worker *workers[8];
    for (unsigned i = 0; i < options.threads; i++)
        workers[i] = new_worker(i);
    const uint8_t *pressure;
    uint8_t *base = make_region(&pressure);
    size_t part = REGION_PAGES / options.threads;
    for (unsigned i = 0; i < options.threads; i++) {
        struct worker *w = workers[i];
        w->base = base + i * part * PAGE;
        w->pages = part;
        w->pressure = pressure;
        if (options.threads > 1) { /* Mappings of neighbours are not merged. */
            w->pages--;
            SYS(munmap(w->base + w->pages * PAGE, PAGE));
        }
    }
    for (unsigned i = 1; i < options.threads; i++)
        SPAWN(&threads[i], work, workers[i]);
    work(workers[0]);
    for (unsigned i = 1; i < options.threads; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
