/* Holes inside mappings belong to nobody but the program, and what others keep in this process is out of its
 * reach.
 *   holes FILE SEED ROUNDS    FILE is the pattern of SEED, of at least 24 MiB; FILE.copy is made
 *
 * Threads fault, write, sync, map, unmap and lock, so that whoever serves them needs stacks, heap and
 * buffers; and with swap makes private memory the kernel's.
 * Meanwhile the main thread makes holes, which must stay empty, and fills them by MAP_FIXED with bytes that
 * must stay. Nothing of the program's own is mapped by the kernel meanwhile. */
#include "common.h"
#include "unseen.h"
#include <dirent.h>
#include <sys/syscall.h>

#define THREADS 6
#define HOLES 6
#define OWN_BYTES (512 * KIB)
/* What the kernel places without a hint is above this, with or without ASLR. */
#define PLACED_BY_KERNEL 0x600000000000
/* Of many sizes: stacks, heaps and rings fit into some of them. */
static const size_t hole_bytes[HOLES] = {64 * KIB, 256 * KIB, 600 * KIB, MIB, 3 * MIB, 9 * MIB};

static uint64_t seed;
static int file, copy;
static atomic_bool stop;
static char text[4 * MIB];

/* Reads a whole file of /proc into `text`. */
static void read_text(const char *name)
{
    int fd = open(name, O_RDONLY);
    size_t at = 0;
    ssize_t n = 0;
    while (fd >= 0 && at < sizeof text - 1 && (n = read(fd, text + at, sizeof text - 1 - at)) > 0)
        at += (size_t)n;
    text[at] = 0;
    if (fd >= 0)
        close(fd);
}

/* What a thread works on: mapped before there are holes, and mapped anew only over itself. */
struct work {
    uint64_t number;
    const uint8_t *all;
    uint8_t *some;
    uint8_t *own;
};

/* What is locked is the kernel's; mapped anew, it is not. */
static void lock_own(uint8_t *own, uint8_t stamp)
{
    memset(own, stamp, OWN_BYTES);
    SYS(mlock(own, OWN_BYTES));
    bytes_check(own, stamp, OWN_BYTES, "what was locked");
    SYS(munlock(own, OWN_BYTES));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    CHECK(mmap(own, OWN_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) == own, "MAP_FIXED over a mapping: %s",
          strerror(errno));
}

static void *load(void *argument)
{
    struct work *work = argument;
    struct rng rng = rng_new(seed, work->number);
    size_t len = 24 * MIB, part = 2 * MIB;
    const uint8_t *all = work->all;
    uint8_t *some = work->some;
    while (!stop) {
        uint64_t at = rng_below(&rng, (len - part) / PAGE) * PAGE;
        for (int i = 0; i < 50; i++) {
            uint64_t word = rng_below(&rng, len / 8);
            CHECK(((const uint64_t *)all)[word] == pattern_word(seed, word), "a word is wrong");
        }
        /* From one managed file to another: through a buffer of whoever manages them. */
        pwrite_all(copy, all + at, 100 * KIB, at);
        void *again = mmap(some, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, copy, (off_t)at);
        CHECK(again == some, "MAP_FIXED over a mapping: %s", strerror(errno));
        CHECK(some[5] == pattern_byte(seed, at + 5), "a byte of the copy is wrong");
        /* Of pages far apart: they are written at the same time, by a ring. */
        for (size_t i = 5; i < part; i += 300 * KIB)
            some[i] = pattern_byte(seed, at + i);
        SYS(msync(some, part, MS_SYNC));
        for (int i = 0; i < 3; i++)
            lock_own(work->own, (uint8_t)(i + 1));
    }
    return NULL;
}

/* Nothing is mapped in the hole. */
static void check_empty(uintptr_t start, uintptr_t end)
{
    read_text("/proc/self/maps");
    for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        unsigned long long from, to;
        CHECK(sscanf(line, "%llx-%llx", &from, &to) == 2, "a line of maps: %.60s", line);
        CHECK(to <= start || end <= from, "in the hole %#llx-%#llx: %.80s", (unsigned long long)start,
              (unsigned long long)end, line);
    }
}

/* No ring lies where the kernel places mappings without a hint: holes are there. Tells if there are rings. */
static const char *check_rings(void)
{
    bool found = false;
    read_text("/proc/self/maps");
    for (char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        unsigned long long from, to;
        int name = 0;
        CHECK(sscanf(line, "%llx-%llx %*s %*s %*s %*s %n", &from, &to, &name) == 2, "a line: %.60s", line);
        bool is_ring = !strncmp(line + name, "anon_inode:[io_uring]", 21);
        CHECK(!is_ring || from < PLACED_BY_KERNEL, "a ring where holes are: %.80s", line);
        found |= is_ring;
    }
    /* Of the smallest ring, with all options zero: whether the machine permits any. */
    char options[256] = {0};
    return found ? "rings" : syscall(SYS_io_uring_setup, 1, options) < 0 ? "rings forbidden" : "no rings";
}

/* For some milliseconds nothing is mapped at the end of any hole, where the kernel begins. */
static void watch_empty(uint8_t *const *holes)
{
    for (int look = 0; look < 20000; look++) {
        uint8_t *last = holes[look % HOLES] + hole_bytes[look % HOLES] - PAGE;
        unsigned char resident;
        SYS_FAILS(UNSEEN(SYS_mincore, last, PAGE, &resident), ENOMEM);
    }
}

/* What the stacks of others in this process are mapped to cannot be changed by accident. */
static int check_out_of_reach(void)
{
    int found = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL, "there are no tasks");
    for (struct dirent *task; (task = readdir(tasks));) {
        char name[300];
        unsigned long long stack;
        snprintf(name, sizeof name, "/proc/self/task/%s/comm", task->d_name);
        read_text(name);
        if (strncmp(text, "elbowroom-", 10))
            continue;
        snprintf(name, sizeof name, "/proc/self/task/%s/syscall", task->d_name);
        read_text(name);
        /* number, six arguments, stack pointer, program counter */
        if (sscanf(text, "%*d %*x %*x %*x %*x %*x %*x %llx", &stack) != 1)
            continue;
        uint8_t *page = (uint8_t *)((uintptr_t)stack & ~(PAGE - 1));
        SYS_FAILS(munmap(page, PAGE), EINVAL);
        SYS_FAILS(munmap(page - 64 * PAGE, 128 * PAGE), EINVAL);
        SYS_FAILS(mprotect(page, PAGE, PROT_READ), ENOMEM);
        SYS_FAILS(madvise(page, PAGE, MADV_DONTNEED), ENOMEM);
        SYS_FAILS(mremap(page, PAGE, 2 * PAGE, MREMAP_MAYMOVE), EINVAL);
        void *mapped = mmap(page, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(mapped == MAP_FAILED && errno == ENOMEM, "a stack was replaced");
        found++;
    }
    closedir(tasks);
    return found;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: holes FILE SEED ROUNDS");
    seed = strtoull(argv[2], NULL, 0);
    int rounds = atoi(argv[3]);
    file = (int)SYS(open(argv[1], O_RDONLY));
    copy = make_file(argv[1], ".copy", seed, 24 * MIB);
    /* The first mapping of a file, and holes in it, are there before threads need anything. */
    uint8_t *ground = map_file(file, 24 * MIB, PROT_READ, MAP_SHARED, 0);
    check_out_of_reach();
    uint8_t *holes[HOLES];
    uint8_t *next = ground + MIB;
    pthread_t threads[THREADS];
    for (int i = 0; i < HOLES; i++) {
        holes[i] = next;
        next += hole_bytes[i] + MIB;
    }
    struct work work[THREADS];
    for (int i = 0; i < THREADS; i++) {
        work[i].number = (uint64_t)i + 1;
        work[i].all = map_file(file, 24 * MIB, PROT_READ, MAP_SHARED, 0);
        work[i].some = map_file(copy, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS;
        work[i].own = mmap(NULL, OWN_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
        CHECK(work[i].own != MAP_FAILED, "mmap: %s", strerror(errno));
    }
    for (int i = 0; i < THREADS; i++)
        SPAWN(&threads[i], load, &work[i]);
    struct rng rng = rng_new(seed, 0);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < HOLES; i++) {
            size_t len = hole_bytes[i];
            uint8_t stamp = (uint8_t)(1 + rng_below(&rng, 255));
            /* The kernel's: what the manager maps there would leave a window. */
            int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;
            CHECK(mmap(holes[i], len, PROT_READ | PROT_WRITE, flags, -1, 0) == holes[i], "MAP_FIXED failed");
            memset(holes[i], stamp, len);
            sleep_ms(1);
            bytes_check(holes[i], stamp, len, "what was mapped over a hole");
            SYS(munmap(holes[i], len));
        }
        watch_empty(holes);
        for (int i = 0; i < HOLES; i++)
            check_empty((uintptr_t)holes[i], (uintptr_t)holes[i] + hole_bytes[i]);
    }
    stop = true;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    int found = check_out_of_reach();
    pattern_check(seed, 0, ground, MIB, "what is left of the first mapping");
    printf("others %s, %s\n", found > 0 ? "out of reach" : "absent", check_rings());
    return 0;
}
