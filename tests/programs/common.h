/* What every test program shares: checks that end the program with a message, a pattern that gives every byte
 * of a file its expected value, a small random generator, and probes that say which signal an access raises.
 *
 * The programs know nothing of Elbowroom. Each is right under the plain kernel, and must then behave the same
 * under `elbowroom run`. A failed check exits with status 99. */
#ifndef COMMON_H
#define COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define KIB ((size_t)1024)
#define MIB (KIB * KIB)
#define UNUSED __attribute__((unused))

UNUSED __attribute__((noreturn, format(printf, 3, 4))) static void fail(const char *file, int line,
                                                                          const char *format, ...)
{
    char text[1024];
    int at = snprintf(text, sizeof text, "%s:%d: ", file, line);
    va_list args;
    va_start(args, format);
    at += vsnprintf(text + at, sizeof text - at - 1, format, args);
    va_end(args);
    if (at > (int)sizeof text - 2)
        at = sizeof text - 2;
    text[at++] = '\n';
    fflush(stdout);
    if (write(2, text, at) < 0)
        _exit(98);
    _exit(99);
}

#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            FAIL(__VA_ARGS__);                                                                               \
    } while (0)
/* Evaluates to the call's result; a failed call ends the program. */
#define SYS(call)                                                                                            \
    ({                                                                                                       \
        long sys_result = (long)(call);                                                                      \
        if (sys_result == -1)                                                                                \
            FAIL("%s: %s", #call, strerror(errno));                                                          \
        sys_result;                                                                                          \
    })
/* The call must fail, with this errno. */
#define SYS_FAILS(call, expected)                                                                            \
    do {                                                                                                     \
        errno = 0;                                                                                           \
        long sys_result = (long)(call);                                                                      \
        int sys_errno = errno;                                                                               \
        CHECK(sys_result == -1, "%s gave %ld instead of %s", #call, sys_result, strerrorname_np(expected));  \
        CHECK(sys_errno == (expected), "%s gave %s instead of %s", #call, strerrorname_np(sys_errno),        \
              strerrorname_np(expected));                                                                    \
    } while (0)
#define SPAWN(thread, function, argument)                                                                    \
    do {                                                                                                     \
        int spawn_error = pthread_create(thread, NULL, function, argument);                                  \
        CHECK(spawn_error == 0, "pthread_create: %s", strerror(spawn_error));                                \
    } while (0)

/* ---- the pattern ---- */

UNUSED static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The 8 bytes at offset 8 * `index` of the file of this seed, little-endian. */
UNUSED static inline uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    return mix(seed * 0x2545f4914f6cdd1du + index);
}

UNUSED static inline uint8_t pattern_byte(uint64_t seed, uint64_t offset)
{
    return (uint8_t)(pattern_word(seed, offset / 8) >> (8 * (offset % 8)));
}

UNUSED static void pattern_fill(uint64_t seed, uint64_t offset, uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len;) {
        if ((offset + i) % 8 == 0 && len - i >= 8) {
            uint64_t word = pattern_word(seed, (offset + i) / 8);
            memcpy(bytes + i, &word, 8);
            i += 8;
        } else {
            bytes[i] = pattern_byte(seed, offset + i);
            i++;
        }
    }
}

/* `bytes` holds what the file of this seed has at `offset`. `what` is for the message. */
UNUSED static void pattern_check(uint64_t seed, uint64_t offset, const uint8_t *bytes, size_t len,
                                 const char *what)
{
    for (size_t i = 0; i < len;) {
        if ((offset + i) % 8 == 0 && len - i >= 8) {
            uint64_t word;
            memcpy(&word, bytes + i, 8);
            CHECK(word == pattern_word(seed, (offset + i) / 8),
                  "%s: the word at file offset %#llx is %#llx, not %#llx", what,
                  (unsigned long long)(offset + i), (unsigned long long)word,
                  (unsigned long long)pattern_word(seed, (offset + i) / 8));
            i += 8;
        } else {
            CHECK(bytes[i] == pattern_byte(seed, offset + i),
                  "%s: the byte at file offset %#llx is %#x, not %#x", what, (unsigned long long)(offset + i),
                  bytes[i], pattern_byte(seed, offset + i));
            i++;
        }
    }
}

UNUSED static void bytes_check(const uint8_t *bytes, uint8_t value, size_t len, const char *what)
{
    for (size_t i = 0; i < len; i++)
        CHECK(bytes[i] == value, "%s: byte %#zx is %#x, not %#x", what, i, bytes[i], value);
}

UNUSED static void zero_check(const uint8_t *bytes, size_t len, const char *what)
{
    bytes_check(bytes, 0, len, what);
}

/* ---- random numbers ---- */

struct rng {
    uint64_t state;
};

UNUSED static inline uint64_t rng_next(struct rng *rng)
{
    return mix(rng->state++);
}

/* Different streams of one seed have nothing in common. */
UNUSED static inline struct rng rng_new(uint64_t seed, uint64_t stream)
{
    return (struct rng){mix(mix(seed) ^ stream)};
}

/* In [0, bound). */
UNUSED static inline uint64_t rng_below(struct rng *rng, uint64_t bound)
{
    return rng_next(rng) % bound;
}

/* ---- files and time ---- */

UNUSED static uint64_t file_size(int fd)
{
    struct stat stat;
    SYS(fstat(fd, &stat));
    return (uint64_t)stat.st_size;
}

UNUSED static void pread_all(int fd, void *buffer, size_t len, uint64_t offset)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pread(fd, (uint8_t *)buffer + done, len - done, (off_t)(offset + done));
        CHECK(n > 0, "pread of %zu bytes at %#llx gave %zd: %s", len - done,
              (unsigned long long)(offset + done), n, strerror(errno));
        done += (size_t)n;
    }
}

UNUSED static void pwrite_all(int fd, const void *buffer, size_t len, uint64_t offset)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, (const uint8_t *)buffer + done, len - done, (off_t)(offset + done));
        CHECK(n > 0, "pwrite of %zu bytes at %#llx gave %zd: %s", len - done,
              (unsigned long long)(offset + done), n, strerror(errno));
        done += (size_t)n;
    }
}

UNUSED static uint8_t *map_file(int fd, size_t len, int prot, int flags, uint64_t offset)
{
    void *at = mmap(NULL, len, prot, flags, fd, (off_t)offset);
    CHECK(at != MAP_FAILED, "mmap of %zu bytes at %#llx: %s", len, (unsigned long long)offset,
          strerror(errno));
    return at;
}

/* A scratch file beside `path`: `path` with `suffix`, filled with the pattern of `seed`, open for reading and
 * writing. */
UNUSED static int make_file(const char *path, const char *suffix, uint64_t seed, size_t len)
{
    char name[4096];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    int fd = (int)SYS(open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    size_t step = MIB;
    uint8_t *buffer = malloc(step);
    CHECK(buffer != NULL, "no memory");
    for (size_t at = 0; at < len; at += step) {
        size_t n = len - at < step ? len - at : step;
        pattern_fill(seed, at, buffer, n);
        pwrite_all(fd, buffer, n, at);
    }
    free(buffer);
    return fd;
}

UNUSED static void sleep_ms(unsigned ms)
{
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) == -1 && errno == EINTR)
        ;
}

UNUSED static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- probes: what does an access raise? ---- */

/* `sig` is 0 for an access that succeeded. */
struct outcome {
    int sig, code;
    uintptr_t addr;
};

static __thread sigjmp_buf probe_jump;
static __thread volatile sig_atomic_t probe_active;
static __thread struct outcome probe_seen;

UNUSED static void probe_handler(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (!probe_active) {
        signal(sig, SIG_DFL);
        return;
    }
    probe_seen = (struct outcome){sig, info->si_code, (uintptr_t)info->si_addr};
    siglongjmp(probe_jump, 1);
}

UNUSED static void probe_install(void)
{
    struct sigaction action = {.sa_sigaction = probe_handler, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    SYS(sigaction(SIGSEGV, &action, NULL));
    SYS(sigaction(SIGBUS, &action, NULL));
}

UNUSED __attribute__((noinline)) static struct outcome probe_load(const volatile uint8_t *at, uint8_t *value)
{
    probe_seen = (struct outcome){0, 0, 0};
    if (sigsetjmp(probe_jump, 1) == 0) {
        probe_active = 1;
        uint8_t byte = *at;
        if (value)
            *value = byte;
    }
    probe_active = 0;
    return probe_seen;
}

UNUSED __attribute__((noinline)) static struct outcome probe_store(volatile uint8_t *at, uint8_t value)
{
    probe_seen = (struct outcome){0, 0, 0};
    if (sigsetjmp(probe_jump, 1) == 0) {
        probe_active = 1;
        *at = value;
    }
    probe_active = 0;
    return probe_seen;
}

UNUSED static void outcome_check(struct outcome seen, int sig, int code, const void *at, const char *what,
                                 int line)
{
    bool right = seen.sig == sig && (sig == 0 || (seen.code == code && seen.addr == (uintptr_t)at));
    if (!right)
        fail("probe", line, "%s at %p raised signal %d, code %d, address %#lx instead of signal %d, code %d",
             what, at, seen.sig, seen.code, (unsigned long)seen.addr, sig, code);
}

/* A load or store at `at` raises exactly this signal with this code and this address. */
#define LOAD_RAISES(at, sig, code)                                                                           \
    outcome_check(probe_load((const volatile uint8_t *)(at), NULL), sig, code, (const void *)(at), "a load", \
                  __LINE__)
#define STORE_RAISES(at, sig, code)                                                                          \
    outcome_check(probe_store((volatile uint8_t *)(at), 0x5a), sig, code, (const void *)(at), "a store",     \
                  __LINE__)
/* They succeed. */
#define LOAD_GIVES(at, expected)                                                                             \
    do {                                                                                                     \
        uint8_t load_value = 0;                                                                              \
        outcome_check(probe_load((const volatile uint8_t *)(at), &load_value), 0, 0, (const void *)(at),     \
                      "a load", __LINE__);                                                                   \
        CHECK(load_value == (uint8_t)(expected), "the byte at %p is %#x, not %#x", (const void *)(at),       \
              load_value, (uint8_t)(expected));                                                              \
    } while (0)
#define STORE_WORKS(at, value)                                                                               \
    outcome_check(probe_store((volatile uint8_t *)(at), value), 0, 0, (const void *)(at), "a store", __LINE__)

/* A named part of a program: its name is printed once it has passed. */
#define PART(name, ...)                                                                                      \
    do {                                                                                                     \
        name(__VA_ARGS__);                                                                                   \
        printf("ok %s\n", #name);                                                                            \
        fflush(stdout);                                                                                      \
    } while (0)

#endif
