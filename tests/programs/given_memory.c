/* Calls that are given memory of the program's own, of which most is not in memory: stdio, sockets, pipes,
 * aio and others. The bytes must be those of the plain kernel.
 *
 * given_memory DIRECTORY */
#include "common.h"

#include <aio.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { BYTES = 40 << 20, WORDS = BYTES / 8 };

static uint64_t *map(void)
{
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap: %s", strerror(errno));
    return memory;
}

static uint64_t *from, *to;
static char path[512];

static void fill(uint64_t seed)
{
    for (size_t i = 0; i < WORDS; i++)
        from[i] = i * 0x9e3779b97f4a7c15u + seed;
}

static void check(const char *what, uint64_t seed)
{
    for (size_t i = 0; i < WORDS; i++)
        CHECK(to[i] == i * 0x9e3779b97f4a7c15u + seed, "%s: word %zu is %llx", what, i,
              (unsigned long long)to[i]);
}

static void streams(void)
{
    FILE *out = fopen(path, "w");
    CHECK(out, "fopen: %s", strerror(errno));
    CHECK(fwrite("x", 1, 1, out) == 1, "fwrite");
    CHECK(fwrite(from, 8, WORDS, out) == WORDS, "fwrite: %s", strerror(errno));
    CHECK(fwrite_unlocked(from, 1, 12345, out) == 12345, "fwrite_unlocked: %s", strerror(errno));
    CHECK(!fclose(out), "fclose: %s", strerror(errno));
    FILE *in = fopen(path, "r");
    CHECK(in && fgetc(in) == 'x', "fgetc");
    CHECK(fread(to, 8, WORDS, in) == WORDS, "fread: %s", strerror(errno));
    check("fread", 1);
    /* The rest is a partial item, and then the end. */
    CHECK(fread(to, 1 << 20, 3, in) == 0 && feof(in) && !ferror(in), "a partial item");
    CHECK(!memcmp(to, from, 12345), "the bytes of a partial item");
    CHECK(!fclose(in), "fclose");
}

static void texts(void)
{
    char *text = (char *)to;
    memset(text, 'a', BYTES - 1);
    text[BYTES - 1] = 0;
    FILE *out = fopen(path, "w");
    CHECK(out && fputs(text, out) >= 0 && !fclose(out), "fputs: %s", strerror(errno));
    struct stat stat;
    SYS(lstat(path, &stat));
    CHECK(stat.st_size == BYTES - 1, "fputs wrote %lld", (long long)stat.st_size);
    fill(1);
    int keep = SYS(dup(1)), file = SYS(open(path, O_WRONLY | O_TRUNC));
    SYS(dup2(file, 1));
    CHECK(puts(text) >= 0 && !fflush(stdout), "puts: %s", strerror(errno));
    SYS(dup2(keep, 1));
    SYS(lstat(path, &stat));
    CHECK(stat.st_size == BYTES, "puts wrote %lld", (long long)stat.st_size);
    close(keep);
    close(file);
}

/* The buffer of a stream is the program's memory. */
static void buffer(void)
{
    FILE *out = fopen(path, "w");
    CHECK(out && !setvbuf(out, (char *)to, _IOFBF, 4 << 20), "setvbuf");
    for (size_t i = 0; i < WORDS; i += 3)
        CHECK(fwrite(&from[i], 8, i + 3 <= WORDS ? 3 : WORDS - i, out), "fwrite");
    CHECK(!fclose(out), "fclose: %s", strerror(errno));
    int fd = SYS(open(path, O_RDONLY));
    for (size_t at = 0; at < BYTES;) {
        ssize_t n = read(fd, (char *)to + at, BYTES - at);
        CHECK(n > 0, "read: %s", strerror(errno));
        at += (size_t)n;
    }
    check("setvbuf", 1);
    close(fd);
}

static int ends[2];

static void *send_all(void *how)
{
    for (size_t at = 0; at < BYTES;) {
        char *rest = (char *)from + at;
        size_t len = BYTES - at;
        struct iovec parts[2] = {{rest, len / 2}, {rest + len / 2, len - len / 2}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t n = 0;
        switch (*(char *)how) {
        case 'w': n = write(ends[1], rest, len); break;
        case 's': n = send(ends[1], rest, len, 0); break;
        case 'm': n = sendmsg(ends[1], &message, 0); break;
        case 'v': n = writev(ends[1], parts, 2); break;
        }
        CHECK(n > 0, "%c: %s", *(char *)how, strerror(errno));
        at += (size_t)n;
    }
    SYS(shutdown(ends[1], SHUT_WR) && errno != ENOTSOCK ? -1 : 0);
    return NULL;
}

static void stream_of(const char *how, int is_pipe)
{
    if (is_pipe)
        SYS(pipe(ends));
    else
        SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    memset(to, 0, BYTES);
    pthread_t sender;
    CHECK(!pthread_create(&sender, NULL, send_all, (void *)how), "pthread_create");
    for (size_t at = 0; at < BYTES;) {
        char *rest = (char *)to + at;
        size_t len = BYTES - at;
        struct iovec parts[2] = {{rest, len < 70000 ? len / 2 : 70000}, {0}};
        parts[1] = (struct iovec){rest + parts[0].iov_len, len - parts[0].iov_len};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        struct mmsghdr messages[1] = {{.msg_hdr = message}};
        ssize_t n = 0;
        switch (*how) {
        case 'w': n = read(ends[0], rest, len); break;
        case 's': n = recv(ends[0], rest, len, 0); break;
        case 'm': n = recvmsg(ends[0], &message, 0); break;
        case 'v':
            if (is_pipe)
                n = readv(ends[0], parts, 2);
            else
                n = recvmmsg(ends[0], messages, 1, 0, NULL) == 1 ? (ssize_t)messages[0].msg_len : -1;
            break;
        }
        CHECK(n > 0, "%s: %zd %s", how, n, strerror(errno));
        at += (size_t)n;
    }
    CHECK(!pthread_join(sender, NULL), "pthread_join");
    check(how, 1);
    close(ends[0]);
    close(ends[1]);
}

static void datagrams(void)
{
    SYS(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    memset(to, 0, BYTES);
    enum { PART = 32 << 10 };
    for (size_t at = 0; at < BYTES; at += PART) {
        CHECK(sendto(ends[1], (char *)from + at, PART, 0, NULL, 0) == PART, "sendto: %s", strerror(errno));
        CHECK(recvfrom(ends[0], (char *)to + at, PART, 0, NULL, NULL) == PART, "recvfrom: %s",
              strerror(errno));
    }
    close(ends[0]);
    close(ends[1]);
    check("datagrams", 1);
}

/* The address that a message comes from crosses two pages; several messages come with one call. */
static void addresses(void)
{
    enum { PART = 16 << 10, MESSAGES = 8, STEP = 1 << 20 };
    int a = SYS(socket(AF_INET6, SOCK_DGRAM, 0)), b = SYS(socket(AF_INET6, SOCK_DGRAM, 0));
    struct sockaddr_in6 own = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback}, peer;
    socklen_t len = sizeof peer;
    if (bind(a, (struct sockaddr *)&own, sizeof own) || bind(b, (struct sockaddr *)&own, sizeof own)) {
        /* There is no loopback for this here. */
        close(a);
        close(b);
        return;
    }
    SYS(getsockname(a, (struct sockaddr *)&own, &len));
    SYS(getsockname(b, (struct sockaddr *)&peer, &len));
    SYS(connect(b, (struct sockaddr *)&own, sizeof own));
    struct timeval limit = {.tv_sec = 20};
    SYS(setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    for (size_t at = 0; at + STEP <= BYTES / 2; at += STEP) {
        struct sockaddr *address = (struct sockaddr *)((char *)to + at + 4096 - 20);
        socklen_t *its = (socklen_t *)(void *)((char *)to + at + 3 * 4096);
        *its = sizeof own;
        CHECK(send(b, (char *)from + at, PART, 0) == PART, "send: %s", strerror(errno));
        CHECK(recvfrom(a, (char *)to + at + (64 << 10), PART, 0, address, its) == PART, "recvfrom: %s",
              strerror(errno));
        CHECK(*its == sizeof peer && !memcmp(address, &peer, 8), "the address");
        CHECK(!memcmp((char *)to + at + (64 << 10), (char *)from + at, PART), "recvfrom at %zu", at);
    }
    /* All of it is out by now. */
    memset(from, 0, BYTES);
    fill(1);
    struct mmsghdr *messages = (struct mmsghdr *)((char *)to + 5 * STEP - sizeof *messages);
    struct iovec *parts = (struct iovec *)((char *)to + 6 * STEP - sizeof *parts);
    memset(messages, 0, MESSAGES * sizeof *messages);
    for (int i = 0; i < MESSAGES; i++) {
        parts[i] = (struct iovec){(char *)to + (10 + i) * STEP - PART / 2, PART};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
        CHECK(send(b, (char *)from + i * PART, PART, 0) == PART, "send: %s", strerror(errno));
    }
    int came = 0;
    while (came < MESSAGES) {
        int n = recvmmsg(a, messages + came, (unsigned)(MESSAGES - came), MSG_WAITFORONE, NULL);
        CHECK(n > 0, "recvmmsg after %d: %d %s", came, n, strerror(errno));
        came += n;
    }
    for (int i = 0; i < MESSAGES; i++)
        CHECK(messages[i].msg_len == PART && !memcmp(parts[i].iov_base, (char *)from + i * PART, PART),
              "message %d", i);
    close(a);
    close(b);
}

static FILE *full;

static void *writes(void *unused)
{
    (void)unused;
    fwrite(from, 1, BYTES, full);
    return NULL;
}

/* A thread that is cancelled while it writes leaves the stream unlocked. */
static void cancelled(void)
{
    int both[2];
    SYS(pipe(both));
    full = fdopen(both[1], "w");
    CHECK(full, "fdopen");
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, writes, NULL), "pthread_create");
    usleep(200000);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, NULL), "pthread_cancel");
    CHECK(!ftrylockfile(full), "the stream is locked");
    funlockfile(full);
    close(both[0]);
    signal(SIGPIPE, SIG_IGN);
    fclose(full);
}

static void asynchronous(void)
{
    int fd = SYS(open(path, O_RDWR | O_TRUNC));
    struct aiocb block = {.aio_fildes = fd, .aio_buf = from, .aio_nbytes = 8 << 20};
    const struct aiocb *all[] = {&block};
    CHECK(!aio_write(&block), "aio_write: %s", strerror(errno));
    while (aio_error(&block) == EINPROGRESS)
        aio_suspend(all, 1, NULL);
    CHECK(aio_return(&block) == 8 << 20, "aio_write: %s", strerror(aio_error(&block)));
    block.aio_buf = to;
    memset(to, 0, BYTES);
    CHECK(!aio_read(&block), "aio_read: %s", strerror(errno));
    while (aio_error(&block) == EINPROGRESS)
        aio_suspend(all, 1, NULL);
    CHECK(aio_return(&block) == 8 << 20, "aio_read: %s", strerror(aio_error(&block)));
    CHECK(!memcmp(from, to, 8 << 20), "aio");
    close(fd);
}

static void others(void)
{
    for (size_t at = 0; at + 256 < BYTES; at += 1 << 20) {
        char *here = (char *)to + at + 4096 - 100;
        CHECK(getrandom(here, 256, 0) == 256, "getrandom: %s", strerror(errno));
        CHECK(!getentropy(here, 200), "getentropy: %s", strerror(errno));
        CHECK(syscall(SYS_getrandom, here, 256, 0) == 256, "SYS_getrandom: %s", strerror(errno));
        CHECK(!syscall(SYS_getrusage, 0, here), "SYS_getrusage: %s", strerror(errno));
    }
    /* A structure at the end of the mapping. */
    memset(from, 0, BYTES);
    fill(1);
    struct timespec *last = (struct timespec *)((char *)to + BYTES - sizeof *last);
    CHECK(!syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, last), "SYS_clock_gettime: %s",
          strerror(errno));
    /* A child is waited for once. */
    pid_t child = SYS(fork());
    if (!child)
        _exit(7);
    memset(from, 0, BYTES);
    fill(1);
    int *status = (int *)(void *)((char *)to + 8192 - 2);
    CHECK(syscall(SYS_wait4, child, status, 0, NULL) == child && WEXITSTATUS(*status) == 7, "SYS_wait4: %s",
          strerror(errno));
    /* What is wrong stays wrong. */
    char *volatile bad = (char *)8;
    CHECK(read(0, bad, 10) == -1 && errno == EFAULT, "read: %s", strerror(errno));
    CHECK(syscall(SYS_getrusage, 0, bad) == -1 && errno == EFAULT, "SYS_getrusage: %s", strerror(errno));
    SYS(mprotect(to, BYTES, PROT_READ));
    int fd = SYS(open(path, O_RDONLY));
    CHECK(read(fd, to, 100) == -1 && errno == EFAULT, "read to PROT_READ: %s", strerror(errno));
    SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    CHECK(write(ends[1], "abc", 3) == 3, "write");
    CHECK(recv(ends[0], to, 3, 0) == -1 && errno == EFAULT, "recv to PROT_READ: %s", strerror(errno));
    close(fd);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: given_memory DIRECTORY");
    snprintf(path, sizeof path, "%s/given", argv[1]);
    /* read(0, ...) must reach the buffer. */
    int zero = SYS(open("/dev/zero", O_RDONLY));
    SYS(dup2(zero, 0));
    from = map();
    to = map();
    fill(1);
    streams();
    texts();
    buffer();
    for (const char *how = "wsmv"; *how; how++)
        stream_of((char[]){*how, 0}, 0);
    stream_of("w", 1);
    stream_of("v", 1);
    datagrams();
    addresses();
    cancelled();
    asynchronous();
    others();
    puts("right");
    return 0;
}
