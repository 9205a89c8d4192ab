/* Wrong accesses get the kernel's own signals, with the right code and address, and system calls get EFAULT.
 *   segv FILE SEED     FILE is the pattern of SEED, at least 8 MiB; it is not changed in the end */
#include "common.h"
#include <sys/syscall.h>

static int fd;
static uint64_t seed;
static const size_t LEN = 4 * 1024 * 1024;

static void after_munmap(void)
{
    for (int touched = 0; touched < 2; touched++) {
        uint8_t *base = map_file(fd, LEN, PROT_READ, MAP_SHARED, 0);
        if (touched)
            pattern_check(seed, 0, base, LEN, "before munmap");
        SYS(munmap(base, LEN));
        LOAD_RAISES(base, SIGSEGV, SEGV_MAPERR);
        STORE_RAISES(base + 12345, SIGSEGV, SEGV_MAPERR);
        LOAD_RAISES(base + LEN - 1, SIGSEGV, SEGV_MAPERR);
        LOAD_RAISES(base + LEN / 2 + 1, SIGSEGV, SEGV_MAPERR);
    }
}

static void stores_to_read_only(int flags)
{
    uint8_t *base = map_file(fd, LEN, PROT_READ, flags, 0);
    STORE_RAISES(base + 3 * PAGE + 5, SIGSEGV, SEGV_ACCERR); /* never touched */
    LOAD_GIVES(base + 3 * PAGE + 5, pattern_byte(seed, 3 * PAGE + 5));
    STORE_RAISES(base + 3 * PAGE + 6, SIGSEGV, SEGV_ACCERR); /* read before */
    pattern_check(seed, 0, base, LEN, "a read-only mapping");
    for (size_t at = 0; at < LEN; at += 37 * PAGE + 11)
        STORE_RAISES(base + at, SIGSEGV, SEGV_ACCERR);
    pattern_check(seed, 0, base, LEN, "a read-only mapping after stores");
    SYS(munmap(base, LEN));
}

static void no_access(void)
{
    uint8_t *base = map_file(fd, LEN, PROT_NONE, MAP_SHARED, 0);
    LOAD_RAISES(base, SIGSEGV, SEGV_ACCERR);
    STORE_RAISES(base + LEN - 1, SIGSEGV, SEGV_ACCERR);
    SYS(mprotect(base, LEN, PROT_READ));
    pattern_check(seed, 0, base, LEN, "after PROT_NONE");
    SYS(mprotect(base + PAGE, PAGE, PROT_NONE));
    LOAD_RAISES(base + PAGE, SIGSEGV, SEGV_ACCERR);
    LOAD_RAISES(base + 2 * PAGE - 1, SIGSEGV, SEGV_ACCERR);
    LOAD_GIVES(base + 2 * PAGE, pattern_byte(seed, 2 * PAGE));
    SYS(munmap(base, LEN));
}

/* As a collector does: the handler opens the page and returns, and the access goes on. */
static uint8_t *barrier_base;
static volatile unsigned barrier_hits;

static void barrier_handler(int sig, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    uintptr_t base = (uintptr_t)barrier_base;
    if (sig != SIGSEGV || info->si_code != SEGV_ACCERR || at < base || at >= base + LEN)
        FAIL("signal %d, code %d at %#lx", sig, info->si_code, (unsigned long)at);
    barrier_hits++;
    if (mprotect((void *)(at / PAGE * PAGE), PAGE, PROT_READ | PROT_WRITE) != 0)
        FAIL("mprotect: %s", strerror(errno));
}

static void write_barrier(void)
{
    struct sigaction action = {.sa_sigaction = barrier_handler, .sa_flags = SA_SIGINFO}, before;
    sigemptyset(&action.sa_mask);
    barrier_base = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    SYS(sigaction(SIGSEGV, &action, &before));
    for (int round = 0; round < 2; round++) {
        SYS(mprotect(barrier_base, LEN, round == 0 ? PROT_READ : PROT_NONE));
        barrier_hits = 0;
        unsigned stores = 0;
        for (size_t at = 1; at < LEN; at += 5 * PAGE, stores++) {
            volatile uint8_t *byte = barrier_base + at;
            *byte = pattern_byte(seed, at);
            *byte = pattern_byte(seed, at);
        }
        CHECK(barrier_hits == stores, "%u faults for %u pages", barrier_hits, stores);
        SYS(mprotect(barrier_base, LEN, PROT_READ));
        pattern_check(seed, 0, barrier_base, LEN, "under a write barrier");
    }
    SYS(sigaction(SIGSEGV, &before, NULL));
    SYS(munmap(barrier_base, LEN));
}

/* Many threads raise signals at once; each gets its own. */
static void *prober(void *argument)
{
    uint8_t *base = argument;
    struct rng rng = rng_new(seed, (uintptr_t)&rng);
    for (int i = 0; i < 200; i++) {
        size_t at = rng_below(&rng, LEN);
        if (at / PAGE % 2)
            LOAD_RAISES(base + at, SIGSEGV, SEGV_ACCERR);
        else {
            LOAD_GIVES(base + at, pattern_byte(seed, at));
            STORE_RAISES(base + at, SIGSEGV, SEGV_ACCERR);
        }
    }
    return NULL;
}

static void many_probes(void)
{
    uint8_t *base = map_file(fd, LEN, PROT_READ, MAP_SHARED, 0);
    for (size_t page = 1; page < LEN / PAGE; page += 2)
        SYS(mprotect(base + page * PAGE, PAGE, PROT_NONE));
    pthread_t ids[8];
    for (int i = 0; i < 8; i++)
        SPAWN(&ids[i], prober, base);
    for (int i = 0; i < 8; i++)
        pthread_join(ids[i], NULL);
    SYS(munmap(base, LEN));
}

static void efault(void)
{
    int zero = (int)SYS(open("/dev/zero", O_RDONLY)), pipes[2];
    SYS(pipe(pipes));
    uint8_t *gone = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    SYS(munmap(gone, LEN));
    SYS_FAILS(write(pipes[1], gone + 100, 10), EFAULT);
    SYS_FAILS(read(zero, gone + PAGE, 10), EFAULT);
    SYS_FAILS(pread(fd, gone + 2 * PAGE, 10, 0), EFAULT);

    uint8_t *base = map_file(fd, LEN, PROT_READ, MAP_SHARED, 0);
    SYS_FAILS(read(zero, base + 5, 10), EFAULT);
    LOAD_GIVES(base + 5, pattern_byte(seed, 5));
    SYS_FAILS(read(zero, base + 6, 10), EFAULT);
    SYS_FAILS(pread(fd, base + 9 * PAGE, 10, 0), EFAULT);
    SYS_FAILS(syscall(SYS_fstat, fd, base + 20 * PAGE), EFAULT);
    CHECK(write(pipes[1], base + 40 * PAGE, 100) == 100, "write: %s", strerror(errno));
    SYS(mprotect(base + 50 * PAGE, PAGE, PROT_NONE));
    SYS_FAILS(write(pipes[1], base + 50 * PAGE + 5, 10), EFAULT);
    SYS_FAILS(open((char *)base + 50 * PAGE, O_RDONLY), EFAULT);
    SYS_FAILS(stat("/", (struct stat *)(base + 50 * PAGE + 8)), EFAULT);

    /* As much as is there, then EFAULT. */
    char sink[2 * PAGE];
    while (read(pipes[0], sink, 100) == 100 && fcntl(pipes[0], F_SETFL, O_NONBLOCK) == 0)
        ;
    ssize_t n = write(pipes[1], base + 50 * PAGE - 10, 20);
    CHECK(n == 10 || (n == -1 && errno == EFAULT), "a write across a protected page gave %zd", n);
    SYS(mprotect(base + 50 * PAGE, PAGE, PROT_READ));
    pattern_check(seed, 0, base, LEN, "after failed system calls");
    SYS(munmap(base, LEN));
    SYS(close(zero));
    SYS(close(pipes[0]));
    SYS(close(pipes[1]));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: segv FILE SEED");
    seed = strtoull(argv[2], NULL, 0);
    fd = (int)SYS(open(argv[1], O_RDWR));
    CHECK(file_size(fd) >= 8 * MIB, "the file must have 8 MiB");
    probe_install();
    PART(after_munmap);
    PART(stores_to_read_only, MAP_SHARED);
    PART(stores_to_read_only, MAP_PRIVATE);
    PART(no_access);
    PART(write_barrier);
    PART(many_probes);
    PART(efault);
    return 0;
}
