/* Managed pages as the buffers of system calls, each time pages that nobody has touched before.
 *   syscalls FILE SEED     FILE is the pattern of SEED, at least 32 MiB; FILE.to is made and stored to */
#include "common.h"
#include <linux/io_uring.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static const char *path;
static int fd, to_fd;
static uint64_t seed, to_seed;
static const uint8_t *from; /* read-only view of FILE */
static uint8_t *to;         /* writable view of FILE.to */
static size_t len;
static size_t next_cold; /* everything from here on is untouched, in both views */

/* A stretch that was never touched, not aligned to a page. */
static size_t cold(size_t bytes)
{
    size_t at = next_cold + 129;
    next_cold = (at + bytes) / PAGE * PAGE + 3 * PAGE;
    CHECK(next_cold < len, "the file is too small");
    return at;
}

static size_t cold_pages(size_t bytes)
{
    size_t at = (cold(bytes + PAGE) + PAGE) / PAGE * PAGE;
    return at;
}

/* What a call has put at `at` of the writable view is there, on the file, and nothing beside it has
 * changed. */
static void arrived(size_t at, size_t n, uint64_t source_offset, const char *what)
{
    uint8_t *bytes = malloc(n + 2 * PAGE);
    pattern_check(seed, source_offset, to + at, n, what);
    pread_all(to_fd, bytes, n + 2 * PAGE, at - PAGE);
    pattern_check(to_seed, at - PAGE, bytes, PAGE, what);
    pattern_check(seed, source_offset, bytes + PAGE, n, what);
    pattern_check(to_seed, at + n, bytes + PAGE + n, PAGE, what);
    free(bytes);
}

static void read_family(void)
{
    size_t n = 100000, at = cold(n);
    SYS(lseek(fd, 5000, SEEK_SET));
    CHECK(read(fd, to + at, n) == (ssize_t)n, "read: %s", strerror(errno));
    arrived(at, n, 5000, "read");
    at = cold(n);
    CHECK(pread(fd, to + at, n, 7777) == (ssize_t)n, "pread: %s", strerror(errno));
    arrived(at, n, 7777, "pread");
    at = cold(3 * n);
    struct iovec parts[3] = {{to + at, n}, {to + at + n, n}, {to + at + 2 * n, n}};
    CHECK(preadv(fd, parts, 3, 999) == (ssize_t)(3 * n), "preadv: %s", strerror(errno));
    arrived(at, 3 * n, 999, "preadv");
    at = cold(3 * n);
    SYS(lseek(fd, 1234, SEEK_SET));
    for (int i = 0; i < 3; i++)
        parts[i] = (struct iovec){to + at + i * n, n};
    CHECK(readv(fd, parts, 3) == (ssize_t)(3 * n), "readv: %s", strerror(errno));
    arrived(at, 3 * n, 1234, "readv");
    SYS(getrandom(to + cold(100), 100, 0));
    struct stat *stat = (struct stat *)(to + cold_pages(sizeof *stat));
    SYS(fstat(fd, stat));
    CHECK((size_t)stat->st_size == file_size(fd), "fstat into a cold page");
}

struct pipe_job {
    int end;
    size_t n;
};

static void *pipe_writer(void *argument)
{
    struct pipe_job *job = argument;
    size_t at = cold(job->n);
    for (size_t done = 0; done < job->n;)
        done += (size_t)SYS(write(job->end, from + at + done, job->n - done));
    return (void *)at;
}

static void through_a_pipe(void)
{
    int pipes[2];
    SYS(pipe(pipes));
    struct pipe_job job = {pipes[1], 300000};
    size_t at = cold(job.n);
    pthread_t writer;
    void *source;
    SPAWN(&writer, pipe_writer, &job);
    for (size_t done = 0; done < job.n;)
        done += (size_t)SYS(read(pipes[0], to + at + done, job.n - done));
    pthread_join(writer, &source);
    arrived(at, job.n, (size_t)source, "a pipe");
    /* vmsplice lends the pages themselves to the pipe. */
    at = cold(40000);
    size_t target = cold(40000);
    struct iovec part = {(void *)(from + at), 40000};
    ssize_t n = SYS(vmsplice(pipes[1], &part, 1, 0));
    CHECK(n == 40000, "vmsplice gave %zd", n);
    for (size_t done = 0; done < 40000;)
        done += (size_t)SYS(read(pipes[0], to + target + done, 40000 - done));
    arrived(target, 40000, at, "vmsplice");
    SYS(close(pipes[0]));
    SYS(close(pipes[1]));
}

static void write_family(void)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.out", path);
    int out = (int)SYS(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    size_t n = 100000, at = cold(n);
    uint8_t *bytes = malloc(3 * n);
    CHECK(write(out, from + at, n) == (ssize_t)n, "write: %s", strerror(errno));
    pread_all(out, bytes, n, 0);
    pattern_check(seed, at, bytes, n, "write");
    at = cold(n);
    CHECK(pwrite(out, from + at, n, 50) == (ssize_t)n, "pwrite: %s", strerror(errno));
    pread_all(out, bytes, n, 50);
    pattern_check(seed, at, bytes, n, "pwrite");
    at = cold(3 * n);
    struct iovec parts[2] = {{(void *)(from + at), n}, {(void *)(from + at + n), 2 * n}};
    CHECK(pwritev(out, parts, 2, 0) == (ssize_t)(3 * n), "pwritev: %s", strerror(errno));
    pread_all(out, bytes, 3 * n, 0);
    pattern_check(seed, at, bytes, 3 * n, "pwritev");
    free(bytes);
    SYS(close(out));
    SYS(unlink(name));
}

static void direct(void)
{
    size_t n = 64 * PAGE, at = cold_pages(n);
    int in = open(path, O_RDONLY | O_DIRECT);
    if (in < 0) {
        fprintf(stderr, "skip: O_DIRECT is refused here: %s\n", strerror(errno));
        return;
    }
    CHECK(pread(in, to + at, n, 9 * PAGE) == (ssize_t)n, "O_DIRECT pread: %s", strerror(errno));
    arrived(at, n, 9 * PAGE, "an O_DIRECT read");
    char name[4096];
    snprintf(name, sizeof name, "%s.direct", path);
    int out = (int)SYS(open(name, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0644));
    at = cold_pages(n);
    CHECK(pwrite(out, from + at, n, 0) == (ssize_t)n, "O_DIRECT pwrite: %s", strerror(errno));
    SYS(close(out));
    out = (int)SYS(open(name, O_RDONLY));
    uint8_t *bytes = malloc(n);
    pread_all(out, bytes, n, 0);
    pattern_check(seed, at, bytes, n, "an O_DIRECT write");
    free(bytes);
    SYS(close(in));
    SYS(close(out));
    SYS(unlink(name));
}

static void process_vm(void)
{
    size_t n = 70000, at = cold(n), target = cold(n);
    struct iovec local = {to + target, n}, remote = {(void *)(from + at), n};
    CHECK(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n, "process_vm_readv: %s",
          strerror(errno));
    arrived(target, n, at, "process_vm_readv");
    at = cold(n);
    target = cold(n);
    local = (struct iovec){(void *)(from + at), n};
    remote = (struct iovec){to + target, n};
    CHECK(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n, "process_vm_writev: %s",
          strerror(errno));
    arrived(target, n, at, "process_vm_writev");
}

static void sockets(void)
{
    int ends[2];
    SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    size_t n = 60000, at = cold(n), target = cold(n);
    struct iovec out = {(void *)(from + at), n}, in = {to + target, n};
    struct msghdr send = {.msg_iov = &out, .msg_iovlen = 1}, receive = {.msg_iov = &in, .msg_iovlen = 1};
    CHECK(sendmsg(ends[0], &send, 0) == (ssize_t)n, "sendmsg: %s", strerror(errno));
    CHECK(recvmsg(ends[1], &receive, MSG_WAITALL) == (ssize_t)n, "recvmsg: %s", strerror(errno));
    arrived(target, n, at, "a socket");
    /* sendfile reads the file whose pages have stores that were never synced. */
    memset(to + target, 0x61, 1000);
    off_t offset = (off_t)target;
    char bytes[1000];
    CHECK(sendfile(ends[0], to_fd, &offset, 1000) == 1000, "sendfile: %s", strerror(errno));
    CHECK(recv(ends[1], bytes, 1000, MSG_WAITALL) == 1000, "recv: %s", strerror(errno));
    bytes_check((uint8_t *)bytes, 0x61, 1000, "sendfile of stores");
    SYS(close(ends[0]));
    SYS(close(ends[1]));
}

/* ---- io_uring, by its bare system calls ---- */

struct ring {
    int fd;
    struct io_uring_params params;
    uint8_t *submissions, *completions;
    struct io_uring_sqe *entries;
};

static bool ring_open(struct ring *ring)
{
    memset(&ring->params, 0, sizeof ring->params);
    ring->fd = (int)syscall(SYS_io_uring_setup, 8, &ring->params);
    if (ring->fd < 0) {
        fprintf(stderr, "skip: io_uring is refused here: %s\n", strerror(errno));
        return false;
    }
    struct io_uring_params *p = &ring->params;
    int prot = PROT_READ | PROT_WRITE;
    ring->submissions =
        map_file(ring->fd, p->sq_off.array + p->sq_entries * 4, prot, MAP_SHARED, IORING_OFF_SQ_RING);
    ring->completions = map_file(ring->fd, p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe), prot,
                                 MAP_SHARED, IORING_OFF_CQ_RING);
    ring->entries = (void *)map_file(ring->fd, p->sq_entries * sizeof(struct io_uring_sqe), prot, MAP_SHARED,
                                     IORING_OFF_SQES);
    return true;
}

static int ring_do(struct ring *ring, int opcode, int file, const void *buffer, size_t n, uint64_t offset)
{
    struct io_uring_params *p = &ring->params;
    _Atomic unsigned *tail = (void *)(ring->submissions + p->sq_off.tail);
    unsigned mask = *(unsigned *)(ring->submissions + p->sq_off.ring_mask), slot = atomic_load(tail) & mask;
    ring->entries[slot] = (struct io_uring_sqe){
        .opcode = (uint8_t)opcode, .fd = file, .addr = (uintptr_t)buffer, .len = (unsigned)n, .off = offset};
    ((unsigned *)(ring->submissions + p->sq_off.array))[slot] = slot;
    atomic_fetch_add(tail, 1);
    SYS(syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    _Atomic unsigned *head = (void *)(ring->completions + p->cq_off.head);
    struct io_uring_cqe *done = (void *)(ring->completions + p->cq_off.cqes);
    mask = *(unsigned *)(ring->completions + p->cq_off.ring_mask);
    int result = done[atomic_load(head) & mask].res;
    atomic_fetch_add(head, 1);
    return result;
}

static void uring(void)
{
    struct ring ring;
    if (!ring_open(&ring))
        return;
    size_t n = 50000, at = cold(n);
    int result = ring_do(&ring, IORING_OP_READ, fd, to + at, n, 4321);
    CHECK(result == (int)n, "an io_uring read gave %d", result);
    arrived(at, n, 4321, "an io_uring read");
    char name[4096];
    snprintf(name, sizeof name, "%s.ring", path);
    int out = (int)SYS(open(name, O_RDWR | O_CREAT | O_TRUNC, 0644));
    at = cold(n);
    result = ring_do(&ring, IORING_OP_WRITE, out, from + at, n, 0);
    CHECK(result == (int)n, "an io_uring write gave %d", result);
    uint8_t *bytes = malloc(n);
    pread_all(out, bytes, n, 0);
    pattern_check(seed, at, bytes, n, "an io_uring write");
    free(bytes);
    SYS(unlink(name));
    SYS(close(out));
    SYS(close(ring.fd));
}

/* ---- locks that live in managed memory ---- */

struct shared_lock {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned turn;
};

static void *take_turns(void *argument)
{
    struct shared_lock *lock = argument;
    unsigned mine = 1;
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&lock->mutex);
        while (lock->turn % 2 != mine)
            pthread_cond_wait(&lock->changed, &lock->mutex);
        lock->turn++;
        pthread_cond_broadcast(&lock->changed);
        pthread_mutex_unlock(&lock->mutex);
    }
    return NULL;
}

static void locks(int shared)
{
    struct shared_lock *lock = (struct shared_lock *)(to + cold_pages(sizeof *lock));
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;
    pthread_mutexattr_init(&mutex);
    pthread_condattr_init(&cond);
    pthread_mutexattr_setpshared(&mutex, shared ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE);
    pthread_condattr_setpshared(&cond, shared ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE);
    memset(lock, 0, sizeof *lock);
    pthread_mutex_init(&lock->mutex, &mutex);
    pthread_cond_init(&lock->changed, &cond);
    pthread_t other;
    SPAWN(&other, take_turns, lock);
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&lock->mutex);
        while (lock->turn % 2 != 0)
            pthread_cond_wait(&lock->changed, &lock->mutex);
        lock->turn++;
        pthread_cond_broadcast(&lock->changed);
        pthread_mutex_unlock(&lock->mutex);
    }
    pthread_join(other, NULL);
    CHECK(lock->turn == 1000, "%u turns", lock->turn);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: syscalls FILE SEED");
    path = argv[1];
    seed = strtoull(argv[2], NULL, 0);
    to_seed = seed + 500;
    fd = (int)SYS(open(path, O_RDONLY));
    len = file_size(fd);
    to_fd = make_file(path, ".to", to_seed, len);
    from = map_file(fd, len, PROT_READ, MAP_SHARED, 0);
    to = map_file(to_fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    /* Readahead must not warm what these calls are to find cold. */
    SYS(madvise((void *)from, len, MADV_RANDOM));
    SYS(madvise(to, len, MADV_RANDOM));
    next_cold = 4 * PAGE;
    PART(read_family);
    PART(through_a_pipe);
    PART(write_family);
    PART(direct);
    PART(process_vm);
    PART(sockets);
    PART(uring);
    PART(locks, 0);
    PART(locks, 1);
    return 0;
}
