/* What advice, locks, guards and flags of mappings mean, a line for each case: what a child of fork sees, and
 * what stays when the mapping moves, is split and merged, becomes one with other rights (under Elbowroom it
 * goes back to the kernel for them), and when the addresses are used again. The lines are the same whoever
 * maps.
 *   advice FILE [parts]  all states in all cases; FILE is made for mappings of a file; parts: what was split
 *                    need not become one mapping again
 *   advice out MIB   so much other memory is stored to between the advice and the fork
 *   advice calls     what is refused
 *   advice grow      mappings that grow downwards, where other memory was
 *   advice heap      blocks that are freed in a state, and allocated again
 *   advice wrong WAY blocks that are freed wrongly
 *
 * A view is a character for each page that is looked at: a digit that was loaded, M for SIGSEGV since nothing
 * is mapped, A since the rights say so, B for SIGBUS. */
#include "common.h"
#include <malloc.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define LEN MIB
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#define COLLAPSE 25
#define NO_ADVICE (-1)

static sigjmp_buf there;
static volatile char signal_seen;

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    signal_seen = number == SIGBUS ? 'B' : info->si_code == SEGV_MAPERR ? 'M' : 'A';
    siglongjmp(there, 1);
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    SYS(sigaction(SIGSEGV, &action, NULL));
    SYS(sigaction(SIGBUS, &action, NULL));
}

static char look(const volatile char *at)
{
    if (sigsetjmp(there, 0))
        return signal_seen;
    return (char)('0' + *at % 10);
}

/* The first page, one of each third, and the last. */
static void view(const char *at, char out[6])
{
    size_t places[] = {0, LEN / 6, LEN / 2, LEN / 6 * 5, LEN - PAGE};
    for (int i = 0; i < 5; i++)
        out[i] = look(at + places[i] / PAGE * PAGE);
    out[5] = 0;
}

/* What a child sees, and its child. Both store to what they can load. */
static void print_children(const char *at)
{
    struct shared {
        char child[6], grandchild[6];
    } *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "a page for the answers");
    fflush(stdout);
    pid_t child = SYS(fork());
    if (child == 0) {
        view(at, shared->child);
        pid_t grandchild = SYS(fork());
        if (grandchild == 0) {
            view(at, shared->grandchild);
            _exit(0);
        }
        int status = 0;
        SYS(waitpid(grandchild, &status, 0));
        _exit(status != 0);
    }
    int status = 0;
    SYS(waitpid(child, &status, 0));
    char here[6];
    view(at, here);
    printf(" child %s, its child %s, here %s%s", shared->child, shared->grandchild, here,
           status == 0 ? "" : ", and it failed");
    SYS(munmap(shared, PAGE));
}

/* Some of what smaps says of the mapping at an address. */
static void print_flags(const char *at)
{
    static const char *const known[] = {"dc", "wf", "dd", "hg", "nh", "mg", "nr", "sr", "rr", "lo", "gd"};
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps, "smaps");
    char line[1024];
    bool found = false;
    printf(" [");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            found = start <= (uintptr_t)at && (uintptr_t)at < end;
        if (found && strncmp(line, "VmFlags:", 8) == 0)
            for (size_t i = 0; i < sizeof known / sizeof *known; i++)
                if (strstr(line + 8, known[i]))
                    printf(" %s", known[i]);
    }
    fclose(maps);
    printf(" ]");
}

enum call { ADVISE, LOCK, LOCK_ON_FAULT, BIND };

static const struct state {
    const char *name;
    enum call call;
    int advice, undo;
    /* More flags of mmap. */
    int flags;
} states[] = {
    {"nothing", ADVISE, MADV_NORMAL, NO_ADVICE, 0},
    {"DONTFORK", ADVISE, MADV_DONTFORK, MADV_DOFORK, 0},
    {"WIPEONFORK", ADVISE, MADV_WIPEONFORK, MADV_KEEPONFORK, 0},
    {"DONTDUMP", ADVISE, MADV_DONTDUMP, MADV_DODUMP, 0},
    {"MERGEABLE", ADVISE, MADV_MERGEABLE, MADV_UNMERGEABLE, 0},
    {"HUGEPAGE", ADVISE, MADV_HUGEPAGE, NO_ADVICE, 0},
    {"NOHUGEPAGE", ADVISE, MADV_NOHUGEPAGE, NO_ADVICE, 0},
    {"RANDOM", ADVISE, MADV_RANDOM, MADV_NORMAL, 0},
    {"SEQUENTIAL", ADVISE, MADV_SEQUENTIAL, MADV_NORMAL, 0},
    {"COLLAPSE", ADVISE, COLLAPSE, NO_ADVICE, 0},
    {"GUARD", ADVISE, GUARD_INSTALL, GUARD_REMOVE, 0},
    {"no guard", ADVISE, GUARD_REMOVE, NO_ADVICE, 0},
    {"unmergeable", ADVISE, MADV_UNMERGEABLE, NO_ADVICE, 0},
    {"NORESERVE", ADVISE, MADV_NORMAL, NO_ADVICE, MAP_NORESERVE},
    {"mlock", LOCK, 0, 0, 0},
    {"mlock on fault", LOCK_ON_FAULT, 0, 0, 0},
    {"mbind", BIND, 0, 0, 0},
};

static int set(const struct state *state, char *at, size_t len, bool undo)
{
    unsigned long node = 1;
    long done = 0;
    switch (state->call) {
    case ADVISE:
        done = undo && state->undo == NO_ADVICE ? 0 : madvise(at, len, undo ? state->undo : state->advice);
        break;
    case LOCK:
        done = undo ? munlock(at, len) : mlock(at, len);
        break;
    case LOCK_ON_FAULT:
        done = undo ? munlock(at, len) : mlock2(at, len, 1);
        break;
    case BIND:
        /* MPOL_BIND to the first node, or MPOL_DEFAULT. */
        done = undo ? syscall(SYS_mbind, at, len, 0, NULL, 0, 0)
                    : syscall(SYS_mbind, at, len, 2, &node, 8 * sizeof node, 0);
    }
    /* Whether huge pages can be had is chance. */
    return done == 0 || state->advice == COLLAPSE ? 0 : errno;
}

static int file = -1;
/* A fork may leave more mappings than there were. */
static bool in_parts;

enum kind { MEMORY, PRIVATE_FILE, SHARED_FILE, SHARED_MEMORY };
static const char *const kinds[] = {"memory", "private file", "shared file", "shared memory"};

static char *map(const struct state *state, enum kind kind, void *at)
{
    int flags = kind == SHARED_FILE || kind == SHARED_MEMORY ? MAP_SHARED : MAP_PRIVATE;
    bool has_file = kind == PRIVATE_FILE || kind == SHARED_FILE;
    flags |= (has_file ? 0 : MAP_ANONYMOUS) | (at ? MAP_FIXED : 0) | state->flags;
    char *mapped = mmap(at, LEN, PROT_READ | PROT_WRITE, flags, has_file ? file : -1, 0);
    CHECK(mapped != MAP_FAILED, "mmap: %s", strerror(errno));
    return mapped;
}

static void fill(char *at, size_t len, char value)
{
    for (size_t i = 0; i < len; i += PAGE)
        at[i] = value;
}

static void ballast(size_t bytes)
{
    static char *more;
    if (!more)
        more = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED, "mmap: %s", strerror(errno));
    fill(more, bytes, 3);
}

static const char *name_of(int error)
{
    return error ? strerrorname_np(error) : "ok";
}

static void start(const struct state *state, const char *kind, const char *what)
{
    printf("%s, %s, %s:", state->name, kind, what);
}

/* A child, of each kind of mapping. */
static void forked(const struct state *state)
{
    for (enum kind kind = MEMORY; kind <= SHARED_MEMORY; kind++) {
        char *at = map(state, kind, NULL);
        fill(at, LEN, 7);
        start(state, kinds[kind], "fork");
        printf(" set %s", name_of(set(state, at, LEN, false)));
        print_children(at);
        printf(", undone %s", name_of(set(state, at, LEN, true)));
        print_children(at);
        puts("");
        SYS(munmap(at, LEN));
    }
}

/* The kernel's own mapping, under Elbowroom from here on. */
static void with_other_rights(const struct state *state)
{
    for (enum kind kind = MEMORY; kind <= SHARED_FILE; kind++) {
        char *at = map(state, kind, NULL);
        fill(at, LEN, 7);
        start(state, kinds[kind], "other rights");
        printf(" set %s", name_of(set(state, at, LEN, false)));
        SYS(mprotect(at, LEN, PROT_READ | PROT_WRITE | PROT_EXEC));
        SYS(mprotect(at, LEN, PROT_READ | PROT_WRITE));
        print_flags(at + LEN / 2);
        print_children(at);
        puts("");
        SYS(munmap(at, LEN));
    }
}

static void moved(const struct state *state)
{
    char *at = map(state, MEMORY, NULL), *to = map(state, MEMORY, NULL);
    fill(at, LEN, 7);
    start(state, "memory", "moved");
    printf(" set %s", name_of(set(state, at, LEN, false)));
    CHECK(mremap(at, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap: %s", strerror(errno));
    print_children(to);
    puts("");
    char *grown = mremap(to, LEN, 2 * LEN, MREMAP_MAYMOVE);
    start(state, "memory", "grown");
    if (grown == MAP_FAILED) {
        printf(" %s", name_of(errno));
        grown = to;
    } else {
        /* Guards have no memory to be stored to. */
        if (look(grown + LEN) == '0')
            fill(grown + LEN, LEN, 6);
        print_children(grown);
        print_children(grown + LEN);
        SYS(munmap(grown + LEN, LEN));
    }
    puts("");
    SYS(munmap(grown, LEN));
}

/* The middle third is another mapping, and then is not. */
static void split(const struct state *state)
{
    char *at = map(state, MEMORY, NULL);
    size_t from = LEN / 3 / PAGE * PAGE, len = from;
    fill(at, LEN, 7);
    start(state, "memory", "split");
    printf(" set %s", name_of(set(state, at + from, len, false)));
    print_children(at);
    puts("");
    start(state, "memory", "merged");
    printf(" undone %s", name_of(set(state, at + from, len, true)));
    print_children(at);
    /* What was handed back in parts is several mappings, and memory policies are not seen. */
    bool kernels = state->call != ADVISE || state->advice == GUARD_INSTALL || state->advice == COLLAPSE;
    bool apart = in_parts || kernels;
    if (!apart) {
        char *grown = mremap(at, LEN, 2 * LEN, MREMAP_MAYMOVE);
        printf(", grown %s", grown == MAP_FAILED ? name_of(errno) : "ok");
        if (grown != MAP_FAILED) {
            at = grown;
            SYS(munmap(at + LEN, LEN));
        }
    }
    puts("");
    SYS(munmap(at, LEN));
}

static void used_again(const struct state *state)
{
    char *at = map(state, MEMORY, NULL);
    fill(at, LEN, 7);
    start(state, "memory", "used again");
    printf(" set %s", name_of(set(state, at, LEN, false)));
    SYS(munmap(at, LEN));
    char *again = map(&states[0], MEMORY, at);
    fill(again, LEN / 2, 5);
    print_children(again);
    puts("");
    SYS(munmap(again, LEN));
}

static void all_states(void)
{
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        forked(&states[i]);
        with_other_rights(&states[i]);
        moved(&states[i]);
        split(&states[i]);
        used_again(&states[i]);
    }
}

/* Pages that are out, or compressed, when the fork comes. */
static void out(size_t bytes)
{
    for (size_t i = 0; i < 4; i++) {
        char *at = map(&states[i], MEMORY, NULL);
        fill(at, LEN, 7);
        ballast(bytes);
        start(&states[i], "memory", "out");
        printf(" set %s", name_of(set(&states[i], at, LEN, false)));
        print_children(at);
        /* Half of it is back. */
        fill(at, LEN / 2, 4);
        print_children(at);
        puts("");
        SYS(munmap(at, LEN));
    }
    /* A store that a child makes to what it got empty is its own. */
    char *at = map(&states[0], MEMORY, NULL);
    fill(at, LEN, 7);
    SYS(madvise(at, LEN, MADV_WIPEONFORK));
    fflush(stdout);
    pid_t child = SYS(fork());
    if (child == 0) {
        zero_check((uint8_t *)at, LEN, "wiped");
        fill(at, LEN, 1);
        ballast(bytes);
        for (size_t i = 0; i < LEN; i += PAGE)
            CHECK(at[i] == 1, "page %zu has %d", i / PAGE, at[i]);
        _exit(0);
    }
    int status = 0;
    SYS(waitpid(child, &status, 0));
    ballast(bytes);
    char here[6];
    view(at, here);
    printf("stores of a child: %d, here %s\n", status, here);
}

static void print_call(const char *what, long done)
{
    printf("%s: %s\n", what, name_of(done == -1 ? errno : 0));
}

static void calls(void)
{
    char *at = map(&states[0], MEMORY, NULL);
    static const int all[] = {0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
                              102, 103, 5, 6, 7, 26, 99, 104, 1000, -1};
    char what[64];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        static const struct {
            const char *name;
            size_t offset, len;
        } ranges[] = {{"nothing", 0, 0}, {"not aligned", 1, PAGE}, {"whole", 0, LEN}, {"a byte", PAGE, 1},
                      {"longest", 0, SIZE_MAX}, {"long", 0, SIZE_MAX - 2 * PAGE}};
        for (size_t range = 0; range < sizeof ranges / sizeof *ranges; range++) {
            snprintf(what, sizeof what, "madvise %d, %s", all[i], ranges[range].name);
            /* Guards stay until the end of the page. */
            print_call(what, madvise(at + ranges[range].offset, ranges[range].len, all[i]));
        }
        snprintf(what, sizeof what, "madvise %d, from 0", all[i]);
        print_call(what, madvise(NULL, SIZE_MAX, all[i]));
    }
    SYS(munmap(at, LEN));
    /* A hole: the rest has it. */
    at = map(&states[0], MEMORY, NULL);
    fill(at, LEN, 7);
    SYS(munmap(at + LEN / 2, PAGE));
    print_call("DONTFORK with a hole", madvise(at, LEN, MADV_DONTFORK));
    print_children(at);
    puts("");
    print_call("DOFORK with a hole", madvise(at, LEN, MADV_DOFORK));
    print_children(at);
    puts("");
    SYS(munmap(at, LEN));
    at = map(&states[0], SHARED_MEMORY, NULL);
    print_call("WIPEONFORK of shared memory", madvise(at, LEN, MADV_WIPEONFORK));
    SYS(munmap(at, LEN));
    at = map(&states[0], MEMORY, NULL);
    for (int i = 0; i < 2; i++) {
        void *base = i ? at : NULL;
        print_call("mprotect, longest", mprotect(base, SIZE_MAX, PROT_READ));
        print_call("munmap, longest", munmap(base, SIZE_MAX));
        print_call("msync, longest", msync(base, SIZE_MAX, MS_ASYNC));
        print_call("mlock, longest", mlock(base, SIZE_MAX));
        print_call("munlock, longest", munlock(base, SIZE_MAX));
    }
    /* Twice, and the opposite of what was not said. */
    print_call("DONTFORK", madvise(at, LEN, MADV_DONTFORK));
    print_call("DONTFORK again", madvise(at, LEN, MADV_DONTFORK));
    print_call("KEEPONFORK", madvise(at, LEN, MADV_KEEPONFORK));
    print_children(at);
    puts("");
}

/* Stores from the end of a mapping down to `bytes` below its start. */
static void grow_down(const char *name, char *mapping, size_t len, size_t bytes)
{
    char last = 0;
    size_t done = 0;
    for (; done < len + bytes; done += PAGE) {
        volatile char *at = mapping + len - 1 - done;
        last = look(at);
        if (last != '0')
            break;
        *at = 1;
    }
    if (done < len + bytes)
        printf("%s: %c after %zu KiB\n", name, last, done / KIB);
    else
        printf("%s: grown\n", name);
}

static void grow(void)
{
    size_t hole = 4 * MIB, len = 64 * KIB;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, rights = PROT_READ | PROT_WRITE;
    char *at = map(&states[0], MEMORY, NULL);
    SYS(munmap(at, LEN));
    at = SYS(mmap(NULL, hole, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) + (char *)0;
    SYS(munmap(at, hole));
    char *top = mmap(at + hole - len, len, rights, flags | MAP_FIXED, -1, 0);
    CHECK(top == at + hole - len, "mmap: %s", strerror(errno));
    grow_down("in a hole", top, len, 512 * KIB);
    /* What grew is memory like any other. */
    SYS(mprotect(top - 64 * KIB, 64 * KIB, PROT_READ));
    SYS(munmap(top - 512 * KIB, len + 512 * KIB));
    char *again = mmap(at, hole, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(again == at, "mmap: %s", strerror(errno));
    fill(at, hole, 5);
    SYS(munmap(at + MIB, hole - MIB));
    /* A mapping is below: it grows as far as the gap that the kernel keeps. */
    top = mmap(at + hole - len, len, rights, flags | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(top == at + hole - len, "mmap: %s", strerror(errno));
    grow_down("above another", top, len, hole);
    for (size_t i = 0; i < MIB; i += PAGE)
        CHECK(at[i] == 5, "page %zu has %d", i / PAGE, at[i]);
    SYS(munmap(at, hole));
    /* Wherever the kernel puts it, and at a hint. */
    top = mmap(at + hole - len, len, rights, flags, -1, 0);
    CHECK(top != MAP_FAILED, "mmap: %s", strerror(errno));
    if (top == at + hole - len)
        grow_down("at a hint", top, len, 256 * KIB);
    else
        puts("at a hint: elsewhere");
}

/* A block that is allocated after one of the size was freed is as new. */
static void check_next_block(const char *what)
{
    char *block = malloc(LEN + PAGE);
    CHECK(block, "no block");
    memset(block, 2, LEN + PAGE);
    printf("%s:", what);
    print_children(block + (PAGE - (uintptr_t)block % PAGE));
    puts("");
    free(block);
}

static void heap(void)
{
    /* libc, too, has a mapping for each. */
    mallopt(M_MMAP_THRESHOLD, 128 * KIB);
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        if (states[i].call == BIND)
            continue;
        char *block = memalign(PAGE, LEN + PAGE);
        memset(block, 1, LEN);
        set(&states[i], block, LEN, false);
        free(block);
        check_next_block(states[i].name);
    }
    /* Parts: rights, a hole, other memory in its place, moved away. */
    for (int way = 0; way < 5; way++) {
        char *block = memalign(PAGE, LEN + PAGE), *part = block + 64 * PAGE;
        size_t len = 16 * PAGE;
        memset(block, 1, LEN);
        char *to = mmap(NULL, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        switch (way) {
        case 0:
            SYS(mprotect(part, len, PROT_NONE));
            break;
        case 1:
            SYS(munmap(part, len));
            break;
        case 2:
            CHECK(mmap(part, len, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == part, "mmap");
            break;
        case 3:
            CHECK(mremap(part, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
            break;
        case 4:
            CHECK(mremap(to, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, part) == part, "mremap");
        }
        free(block);
        check_next_block("a part");
    }
}

/* A block that is freed twice, or from its inside, ends the program with a line. */
static void wrong(const char *way)
{
    for (int i = 0; i < 70000; i++)
        memset(malloc(100), 1, 100);
    /* The compiler sees through what is wrong here, otherwise. */
    char *volatile block = malloc(100), *volatile large = malloc(LEN);
    memset(large, 1, LEN);
    volatile size_t few = 16, odd = 5, page = PAGE;
    if (strcmp(way, "twice") == 0) {
        free(block);
        free(block);
    } else if (strcmp(way, "inside") == 0) {
        free(block + few);
    } else if (strcmp(way, "odd") == 0) {
        free(block + odd);
    } else if (strcmp(way, "resized") == 0) {
        block = realloc(block + few, 200);
    } else if (strcmp(way, "inside-large") == 0) {
        free(large + page);
    }
    puts("went on");
}

int main(int argc, char **argv)
{
    CHECK(argc > 1, "what?");
    catch_signals();
    if (strcmp(argv[1], "out") == 0) {
        out((size_t)atoi(argv[2]) * MIB);
    } else if (strcmp(argv[1], "calls") == 0) {
        calls();
    } else if (strcmp(argv[1], "grow") == 0) {
        grow();
    } else if (strcmp(argv[1], "heap") == 0) {
        heap();
    } else if (strcmp(argv[1], "wrong") == 0) {
        wrong(argv[2]);
    } else {
        file = SYS(open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600));
        SYS(ftruncate(file, LEN));
        in_parts = argc > 2;
        all_states();
    }
    return 0;
}
