/* One of many processes that share files and are killed at any moment.
 *   soak_kill DIRECTORY SEED SLOT SLOTS FIRST STEPS
 *
 * DIRECTORY has files "shared.0" to "shared.2", of which every SLOTS-th record of 64 bytes is this slot's,
 * and "own.SLOT", whose records are all its own. A batch has a number, from FIRST on, and fills some records
 * with words that say which batch of which record they are of, so that anybody can check any word. What
 * happens is said on standard output, which the driver reads:
 *   B file batch   the batch begins; which records it has follows from its number
 *   D file batch   all its words are stored
 *   C file batch   a call has confirmed that they are on the disk
 *   F file         the same for all batches of this file that were done before
 *   E              the program ends by itself
 * Signals of all kinds come from outside; the storing thread is the one that gets them. */
#include "common.h"
#include <spawn.h>
#include <sys/file.h>
#include <sys/resource.h>

extern char **environ;

enum { SHARED = 3, FILES = 4, WORDS = 8, RECORD = 64, MOST = 64, LAST = 4096 };
static const size_t SIZES[FILES] = {6 * MIB, 6 * MIB, 6 * MIB, 8 * MIB};

struct file {
    char path[4000];
    int fd;
    uint8_t *at;
    uint64_t slots, slot; /* record r is ours if r % slots == slot */
    int prot;
};

/* The records that this life has stored, to see that they are still there. */
struct stored {
    unsigned file;
    uint32_t record, batch;
};

static struct file files[FILES];
static struct stored last[LAST];
static unsigned stored_count;
static uint64_t seed, slot;
static struct rng rng;
static volatile sig_atomic_t asked_to_end;
static _Atomic bool stop_readers;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char text[80];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (int done = 0; done < n;) {
        ssize_t written = write(1, text + done, (size_t)(n - done));
        if (written < 0 && errno == EINTR)
            continue;
        CHECK(written > 0, "nobody listens: %s", strerror(errno));
        done += (int)written;
    }
}

/* The batch in the low 24 bits, and what proves it above. The driver computes the same. */
static uint64_t word_of(unsigned file, uint64_t record, unsigned word, uint64_t batch)
{
    uint64_t place = ((uint64_t)file << 40 | record << 4 | word) ^ seed;
    return mix(mix(place) ^ batch) << 24 | batch;
}

/* How many records a batch has, and which: in a row or anywhere. */
static unsigned records_of(unsigned file, uint64_t batch, uint32_t *records)
{
    const struct file *f = &files[file];
    uint64_t own = SIZES[file] / RECORD / f->slots,
             hash = mix(seed ^ mix(slot << 32 ^ (uint64_t)file << 56 ^ batch));
    unsigned count = 1 + (unsigned)(hash % MOST);
    for (unsigned i = 0; i < count; i++) {
        uint64_t nth = hash >> 63 ? (hash / MOST + i) % own : mix(hash + i) % own;
        records[i] = (uint32_t)(nth * f->slots + f->slot);
    }
    return count;
}

/* Some batch of this record, whole words of it, or the zeros of the beginning. */
static void check_words(unsigned file, uint64_t record, const uint8_t *bytes, const char *how)
{
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t word = *(const volatile uint64_t *)(const void *)(bytes + i * 8), batch = word & 0xffffff;
        CHECK(word == 0 || word == word_of(file, record, i, batch),
              "seed %llu, slot %llu: word %u of record %llu of file %u is %#llx when %s, "
              "which nobody has stored",
              (unsigned long long)seed, (unsigned long long)slot, i, (unsigned long long)record, file,
              (unsigned long long)word, how);
    }
}

static void check_own(const struct stored *s)
{
    uint8_t bytes[RECORD];
    const char *how = "read";
    if (rng_next(&rng) % 2) {
        pread_all(files[s->file].fd, bytes, RECORD, (uint64_t)s->record * RECORD);
    } else {
        memcpy(bytes, files[s->file].at + (size_t)s->record * RECORD, RECORD);
        how = "loaded";
    }
    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t word;
        memcpy(&word, bytes + i * 8, 8);
        CHECK(word == word_of(s->file, s->record, i, s->batch),
              "seed %llu, slot %llu: word %u of record %u of file %u is %#llx (batch %llu) when %s, "
              "not that of batch %u",
              (unsigned long long)seed, (unsigned long long)slot, i, s->record, s->file,
              (unsigned long long)word, (unsigned long long)(word & 0xffffff), how, s->batch);
    }
}

static void remember(unsigned file, uint32_t record, uint64_t batch)
{
    for (unsigned i = 0; i < stored_count; i++) {
        if (last[i].file == file && last[i].record == record) {
            last[i].batch = (uint32_t)batch;
            return;
        }
    }
    if (stored_count < LAST)
        last[stored_count++] = (struct stored){file, record, (uint32_t)batch};
}

/* The first file has no locks; the others have one of each kind. Only one of the slots holds one at a
 * time. */
static void lock(unsigned file, bool on)
{
    struct flock whole = {.l_type = on ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET};
    int result;
    do {
        result = file == 1 ? fcntl(files[file].fd, F_SETLKW, &whole)
                 : file == 2 ? flock(files[file].fd, on ? LOCK_EX : LOCK_UN)
                             : 0;
    } while (result == -1 && errno == EINTR);
    CHECK(result == 0, "a lock of file %u: %s", file, strerror(errno));
}

static void protect(unsigned file, int prot)
{
    if (files[file].prot != prot)
        SYS(mprotect(files[file].at, SIZES[file], prot));
    files[file].prot = prot;
}

static void store(unsigned file, uint64_t batch, const uint32_t *records, unsigned count)
{
    struct file *f = &files[file];
    bool by_call = rng_next(&rng) % 4 == 0;
    protect(file, PROT_READ | PROT_WRITE);
    for (unsigned i = 0; i < count; i++) {
        uint64_t words[WORDS];
        for (unsigned w = 0; w < WORDS; w++)
            words[w] = word_of(file, records[i], w, batch);
        if (by_call && i % 2) {
            pwrite_all(f->fd, words, RECORD, (uint64_t)records[i] * RECORD);
        } else {
            volatile uint64_t *at = (volatile uint64_t *)(void *)(f->at + (size_t)records[i] * RECORD);
            for (unsigned w = 0; w < WORDS; w++)
                at[w] = words[w];
        }
        remember(file, records[i], batch);
    }
}

static void confirm(unsigned file, uint64_t batch, const uint32_t *records, unsigned count)
{
    struct file *f = &files[file];
    size_t low = SIZES[file], high = 0;
    switch (rng_next(&rng) % 8) {
    case 0:
        SYS(fsync(f->fd));
        say("F %u\n", file);
        break;
    case 1:
        SYS(fdatasync(f->fd));
        say("F %u\n", file);
        break;
    case 2:
        SYS(msync(f->at, SIZES[file], MS_SYNC));
        say("F %u\n", file);
        break;
    case 3:
        for (unsigned i = 0; i < count; i++) {
            size_t page = (size_t)records[i] * RECORD / PAGE * PAGE;
            low = page < low ? page : low;
            high = page + PAGE > high ? page + PAGE : high;
        }
        SYS(msync(f->at + low, high - low, MS_SYNC));
        say("C %u %llu\n", file, (unsigned long long)batch);
        break;
    default:
        break; /* not at all */
    }
}

static void step(uint64_t batch)
{
    unsigned file = (unsigned)(rng_next(&rng) % FILES);
    uint32_t records[MOST];
    unsigned count = records_of(file, batch, records);
    lock(file, true);
    say("B %u %llu\n", file, (unsigned long long)batch);
    store(file, batch, records, count);
    say("D %u %llu\n", file, (unsigned long long)batch);
    confirm(file, batch, records, count);
    lock(file, false);
    for (unsigned i = 0; i < 8 && stored_count > 0; i++)
        check_own(&last[rng_below(&rng, stored_count)]);
    for (unsigned i = 0; i < 32; i++) {
        unsigned other = (unsigned)rng_below(&rng, FILES);
        uint64_t record = rng_below(&rng, SIZES[other] / RECORD);
        check_words(other, record, files[other].at + record * RECORD, "loaded");
    }
}

/* What changes nothing of the bytes. */
static void disturb(void)
{
    unsigned file = (unsigned)rng_below(&rng, FILES);
    struct file *f = &files[file];
    size_t from = rng_below(&rng, SIZES[file] / PAGE) * PAGE, n = SIZES[file] - from;
    static const int ADVICE[] = {MADV_DONTNEED, MADV_WILLNEED, MADV_RANDOM, MADV_NORMAL};
    switch (rng_next(&rng) % 24) {
    case 0:
        SYS(madvise(f->at + from, n, ADVICE[rng_below(&rng, 4)]));
        break;
    case 1:
        protect(file, PROT_READ);
        break;
    case 2:
        SYS(munmap(f->at, SIZES[file]));
        if (rng_next(&rng) % 2) {
            SYS(close(f->fd));
            f->fd = (int)SYS(open(f->path, O_RDWR | O_CLOEXEC));
        }
        f->at = map_file(f->fd, SIZES[file], PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        f->prot = PROT_READ | PROT_WRITE;
        break;
    case 3: {
        char *arguments[] = {(char *)"true", NULL};
        pid_t child;
        int status, error = posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ);
        CHECK(error == 0, "posix_spawn: %s", strerror(error));
        while (waitpid(child, &status, 0) == -1)
            CHECK(errno == EINTR, "waitpid: %s", strerror(errno));
        break;
    }
    case 4:
        SYS(msync(f->at, SIZES[file], MS_ASYNC));
        break;
    default:
        break;
    }
}

/* Loads of a mapping of its own, until the end. */
static void *reader(void *argument)
{
    unsigned file = (unsigned)(uintptr_t)argument;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    int fd = (int)SYS(open(files[file].path, O_RDONLY | O_CLOEXEC));
    const uint8_t *at = map_file(fd, SIZES[file], PROT_READ, MAP_SHARED, 0);
    struct rng own = rng_new(seed, 1000 + slot);
    while (!stop_readers) {
        uint64_t record = rng_below(&own, SIZES[file] / RECORD);
        check_words(file, record, at + record * RECORD, "loaded by a reader");
    }
    return NULL;
}

static void on_signal(int sig)
{
    if (sig == SIGTERM)
        asked_to_end = 1;
}

int main(int argc, char **argv)
{
    CHECK(argc == 7, "usage: soak_kill DIRECTORY SEED SLOT SLOTS FIRST STEPS");
    seed = strtoull(argv[2], NULL, 10);
    slot = strtoull(argv[3], NULL, 10);
    uint64_t slots = strtoull(argv[4], NULL, 10), batch = strtoull(argv[5], NULL, 10);
    uint64_t end = batch + strtoull(argv[6], NULL, 10);
    rng = rng_new(seed, batch * 64 + slot);
    struct rlimit none = {0, 0};
    SYS(setrlimit(RLIMIT_CORE, &none));
    if (rng_next(&rng) % 2) {
        SYS(signal(SIGTERM, on_signal) == SIG_ERR ? -1 : 0);
        SYS(signal(SIGUSR1, on_signal) == SIG_ERR ? -1 : 0);
    }
    for (unsigned i = 0; i < FILES; i++) {
        struct file *f = &files[i];
        snprintf(f->path, sizeof f->path, i < SHARED ? "%s/shared.%u" : "%s/own.%u", argv[1],
                 i < SHARED ? i : (unsigned)slot);
        f->fd = (int)SYS(open(f->path, O_RDWR | O_CLOEXEC));
        f->slots = i < SHARED ? slots : 1;
        f->slot = i < SHARED ? slot : 0;
        f->at = map_file(f->fd, SIZES[i], PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        f->prot = PROT_READ | PROT_WRITE;
    }
    pthread_t thread;
    bool reads = rng_next(&rng) % 3 == 0;
    if (reads)
        SPAWN(&thread, reader, (void *)(uintptr_t)rng_below(&rng, FILES));
    say("S\n");
    for (; batch < end && !asked_to_end; batch++) {
        step(batch);
        disturb();
    }
    stop_readers = true;
    if (reads)
        CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    bool unmap = rng_next(&rng) % 2;
    for (unsigned i = 0; i < FILES && unmap; i++) {
        SYS(munmap(files[i].at, SIZES[i]));
        SYS(close(files[i].fd));
    }
    say("E\n");
    return 0;
}
