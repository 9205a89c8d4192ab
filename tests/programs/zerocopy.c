/* Managed memory that the kernel goes on using after a call has returned, and calls that reach it in other
 * ways.
 *   zerocopy FILE SEED     FILE is the pattern of SEED, 32 MiB; FILE.to and FILE.evict are made */
#include "common.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define LEN (32 * MIB)
#define BAD ((void *)1)
#define MAX_TOTAL (8 * MIB)

static const char *path;
static int fd, to_fd;
static uint64_t seed, to_seed;
static uint8_t *from;  /* a read-only view of FILE */
static uint8_t *to;    /* a writable view of FILE.to */
static uint8_t *evict; /* a view of FILE.evict, larger than the budget */

/* Reads so much that nothing else is left in memory. */
static void drive_out(void)
{
    uint64_t sum = 0;
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < LEN; at += PAGE)
            sum += evict[at];
    CHECK(sum != 1, "the pattern is strange");
}

/* Reads exactly `len` bytes of the pattern at `offset`. */
static void expect(int from_fd, size_t len, uint64_t offset, const char *what)
{
    static uint8_t buffer[MIB];
    while (len > 0) {
        ssize_t n = read(from_fd, buffer, len < sizeof buffer ? len : sizeof buffer);
        CHECK(n > 0, "%s: read: %zd, %s", what, n, strerror(errno));
        pattern_check(seed, offset, buffer, (size_t)n, what);
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
}

/* ---- vmsplice ---- */

static void fails(ssize_t r, int error, const char *what)
{
    CHECK(r == -1 && errno == error, "%s gave %zd, %s, not %s", what, r, strerror(errno), strerror(error));
}

static void one_vmsplice(size_t at, size_t len, unsigned flags, const char *what)
{
    int ends[2];
    SYS(pipe(ends));
    struct iovec part = {from + at, len};
    ssize_t n = SYS(vmsplice(ends[1], &part, 1, flags));
    CHECK(n > 0 && (size_t)n <= len, "%s gave %zd", what, n);
    drive_out();
    expect(ends[0], (size_t)n, at, what);
    SYS(close(ends[0]));
    SYS(close(ends[1]));
}

static void vmsplice_of_mapped_pages(void)
{
    one_vmsplice(MIB, 16 * PAGE, 0, "vmsplice");
    one_vmsplice(2 * MIB, 16 * PAGE, SPLICE_F_GIFT, "vmsplice with GIFT");
    one_vmsplice(3 * MIB + 100, 10 * PAGE, 0, "vmsplice of bytes");
    one_vmsplice(4 * MIB, 16 * MIB, SPLICE_F_NONBLOCK, "vmsplice of more than fits");

    int ends[2];
    SYS(pipe(ends));
    /* Parts of both kinds, described in mapped memory. */
    static uint8_t own[PAGE];
    pattern_fill(seed, 5 * MIB + 200, own, 300);
    struct iovec parts[4] = {{from + 5 * MIB, 200}, {own, 300}, {from, 0}, {from + 5 * MIB + 500, PAGE}};
    memcpy(to + 3 * PAGE - 20, parts, sizeof parts);
    drive_out();
    ssize_t n = SYS(vmsplice(ends[1], (struct iovec *)(to + 3 * PAGE - 20), 4, 0));
    CHECK(n == 500 + (ssize_t)PAGE, "four parts gave %zd", n);
    drive_out();
    expect(ends[0], (size_t)n, 5 * MIB, "vmsplice of parts");

    fails(vmsplice(ends[1], BAD, 1, 0), EFAULT, "vmsplice of no parts");
    struct iovec bad[2] = {{from + 6 * MIB, 100}, {BAD, 100}};
    fails(vmsplice(ends[1], bad + 1, 1, 0), EFAULT, "vmsplice of nothing");
    CHECK(vmsplice(ends[1], bad, 2, 0) == 100, "vmsplice up to a bad part");
    expect(ends[0], 100, 6 * MIB, "vmsplice up to a bad part");
    fails(vmsplice(ends[1], bad, 2000, 0), EINVAL, "vmsplice of too many parts");
    fails(vmsplice(fd, bad, 1, 0), EBADF, "vmsplice to a file");
    struct iovec whole = {from, 16 * PAGE};
    CHECK(vmsplice(ends[1], &whole, 1, 0) == 16 * (ssize_t)PAGE, "vmsplice of all that fits");
    fails(vmsplice(ends[1], &whole, 1, SPLICE_F_NONBLOCK), EAGAIN, "vmsplice to a full pipe");
    expect(ends[0], 16 * PAGE, 0, "all that fits");

    /* Out of a pipe, which copies. */
    uint8_t bytes[1000];
    pattern_fill(seed, 0, bytes, sizeof bytes);
    CHECK(write(ends[1], bytes, sizeof bytes) == sizeof bytes, "write");
    struct iovec into = {to + 10 * PAGE - 300, sizeof bytes};
    CHECK(vmsplice(ends[0], &into, 1, 0) == sizeof bytes, "vmsplice out of a pipe");
    drive_out();
    pattern_check(seed, 0, to + 10 * PAGE - 300, sizeof bytes, "vmsplice out of a pipe");
    SYS(close(ends[0]));
    SYS(close(ends[1]));
}

/* Stores through a mapping are in what splice takes out of the file, and in what tee makes of that. */
static void tee_of_a_mapped_file(void)
{
    int first[2], second[2];
    SYS(pipe(first));
    SYS(pipe(second));
    uint8_t expected[2 * PAGE], seen[2 * PAGE];
    pattern_fill(seed, 99, expected, sizeof expected);
    memcpy(to + 20 * PAGE, expected, sizeof expected);
    off_t at = 20 * (off_t)PAGE;
    CHECK(SYS(splice(to_fd, &at, first[1], NULL, sizeof seen, 0)) == sizeof seen, "splice");
    CHECK(SYS(tee(first[0], second[1], sizeof seen, 0)) == sizeof seen, "tee");
    drive_out();
    for (int i = 0; i < 2; i++) {
        CHECK(read(i ? first[0] : second[0], seen, sizeof seen) == sizeof seen, "read");
        CHECK(memcmp(seen, expected, sizeof seen) == 0, "the pages of pipe %d are others", i);
    }
    for (int i = 0; i < 2; i++) {
        SYS(close(first[i]));
        SYS(close(second[i]));
    }
}

/* ---- sends ---- */

/* Two ends of a connection. The receiving one takes little at a time. */
static void connection(int *sender, int *receiver)
{
    int one = 1, small = 4096, listener = (int)SYS(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof address;
    SYS(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small));
    SYS(bind(listener, (struct sockaddr *)&address, sizeof address));
    SYS(listen(listener, 1));
    SYS(getsockname(listener, (struct sockaddr *)&address, &len));
    *sender = (int)SYS(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SYS(setsockopt(*sender, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one));
    SYS(connect(*sender, (struct sockaddr *)&address, sizeof address));
    *receiver = (int)SYS(accept(listener, NULL, NULL));
    SYS(close(listener));
}

/* How many sends the kernel has said it is done with. */
static unsigned completions(int socket)
{
    unsigned n = 0;
    for (;;) {
        char control[200];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) == -1) {
            CHECK(errno == EAGAIN, "the error queue: %s", strerror(errno));
            return n;
        }
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        CHECK(header != NULL, "no completion");
        struct sock_extended_err *err = (struct sock_extended_err *)CMSG_DATA(header);
        CHECK(err->ee_errno == 0 && err->ee_origin == SO_EE_ORIGIN_ZEROCOPY, "another error");
        n += err->ee_data - err->ee_info + 1;
    }
}

enum way { SEND, SENDTO, SENDMSG, SENDMMSG };

/* Sends up to `len` bytes of the mapping; 0 if the socket is full. `calls` counts the kernel's sends. */
static size_t send_by(enum way way, int socket, size_t at, size_t len, unsigned *calls)
{
    int flags = MSG_ZEROCOPY | MSG_DONTWAIT;
    struct iovec parts[3] = {{from + at, len / 2}, {NULL, 0}, {from + at + len / 2, len - len / 2}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}, .msg_len = 77},
                                  {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 1}, .msg_len = 77}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    ssize_t n;
    if (way == SEND)
        n = send(socket, from + at, len, flags);
    else if (way == SENDTO)
        n = sendto(socket, from + at, len, flags, NULL, 0);
    else if (way == SENDMSG)
        n = sendmsg(socket, &message, flags);
    else {
        n = sendmmsg(socket, messages, 2, flags);
        if (n >= 1) {
            *calls += (unsigned)n - 1;
            CHECK(messages[0].msg_len <= len / 2 && (n == 1 || messages[0].msg_len == len / 2), "msg_len");
            CHECK(n == 2 || messages[1].msg_len == 77, "the length of what was not sent");
            n = messages[0].msg_len + (n == 2 ? messages[1].msg_len : 0);
        }
    }
    if (n == -1) {
        CHECK(errno == EAGAIN || errno == ENOBUFS, "send %d: %s", way, strerror(errno));
        return 0;
    }
    CHECK(n > 0 && (size_t)n <= len, "send %d gave %zd", way, n);
    ++*calls;
    return (size_t)n;
}

static void sends_of_mapped_pages(void)
{
    for (enum way way = SEND; way <= SENDMMSG; way++) {
        int sender, receiver;
        connection(&sender, &receiver);
        size_t begin = (size_t)way * 3 * MIB + 77, total = 0, n;
        unsigned calls = 0, completed = 0;
        while (total < MAX_TOTAL && (n = send_by(way, sender, begin + total, MIB / 2 + 10, &calls)) > 0)
            total += n;
        CHECK(total > 64 * KIB, "only %zu bytes could be sent", total);
        drive_out();
        expect(receiver, total, begin, "a zero-copy send");
        SYS(shutdown(sender, SHUT_WR));
        while ((completed += completions(sender)) < calls) {
            struct pollfd poll_for = {.fd = sender};
            CHECK(poll(&poll_for, 1, 20000) == 1, "way %d: %u of %u sends are done", way, completed, calls);
        }
        CHECK(completed == calls, "way %d: %u of %u sends are done", way, completed, calls);
        SYS(close(sender));
        SYS(close(receiver));
    }
}

/* A blocking send of more than the socket takes ends when all was sent. */
static void *drain(void *argument)
{
    expect(*(int *)argument, 8 * MIB, 20 * MIB, "a long send");
    return NULL;
}

static void long_sends(void)
{
    int sender, receiver;
    connection(&sender, &receiver);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, drain, &receiver) == 0, "pthread_create");
    ssize_t n = send(sender, from + 20 * MIB, 8 * MIB, MSG_ZEROCOPY);
    CHECK(n == 8 * (ssize_t)MIB, "a long send gave %zd: %s", n, strerror(errno));
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    SYS(close(sender));
    SYS(close(receiver));
}

static void bad_sends(void)
{
    int sender, receiver;
    connection(&sender, &receiver);
    struct iovec parts[2] = {{from + 7 * MIB, 1000}, {BAD, 1000}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    fails(send(sender, BAD, 100, MSG_ZEROCOPY), EFAULT, "send of nothing");
    fails(sendmsg(sender, BAD, MSG_ZEROCOPY), EFAULT, "sendmsg of nothing");
    fails(sendmmsg(sender, BAD, 1, MSG_ZEROCOPY), EFAULT, "sendmmsg of nothing");
    message.msg_iov = BAD;
    fails(sendmsg(sender, &message, MSG_ZEROCOPY), EFAULT, "sendmsg of bad parts");
    message.msg_iov = parts;
    message.msg_iovlen = 2000;
    fails(sendmsg(sender, &message, MSG_ZEROCOPY), EMSGSIZE, "sendmsg of too many parts");
    fails(send(fd, from, 100, MSG_ZEROCOPY), ENOTSOCK, "send to a file");
    CHECK(sendmmsg(sender, BAD, 0, MSG_ZEROCOPY) == 0, "sendmmsg of no messages");
    SYS(close(receiver));

    /* A datagram is whole, or is not sent. */
    int pair[2];
    SYS(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair));
    message.msg_iovlen = 2;
    fails(sendmsg(pair[0], &message, MSG_ZEROCOPY), EFAULT, "half a datagram");
    char bytes[10];
    fails(recv(pair[1], bytes, sizeof bytes, 0), EAGAIN, "half a datagram");
    message.msg_iovlen = 1;
    CHECK(sendmsg(pair[0], &message, MSG_ZEROCOPY) == 1000, "a datagram: %s", strerror(errno));
    expect(pair[1], 1000, 7 * MIB, "a datagram");
    SYS(close(pair[0]));
    SYS(close(pair[1]));
    SYS(close(sender));
}

/* ---- other processes' ways into memory, used on oneself ---- */

/* One transfer through /proc/self/mem. It may fail with EIO for pages that are not in memory: what a
   userfaultfd serves, the kernel does not wait for there. */
static ssize_t by_file(int memory, bool write, uint8_t *bytes, size_t len, volatile uint8_t *at)
{
    ssize_t n = -1;
    for (int tries = 0; tries < 100 && n != (ssize_t)len; tries++) {
        n = write ? pwrite(memory, bytes, len, (off_t)(uintptr_t)at)
                  : pread(memory, bytes, len, (off_t)(uintptr_t)at);
        CHECK(n >= 0 || errno == EIO, "/proc/self/mem: %s", strerror(errno));
        for (size_t i = 0; i < len; i += PAGE)
            at[i] = write ? 0 : at[i];
        at[len - 1] = write ? 0 : at[len - 1];
        if (write && n == (ssize_t)len)
            n = pwrite(memory, bytes, len, (off_t)(uintptr_t)at);
    }
    return n;
}

static void ways_of_debuggers(void)
{
    uint8_t bytes[3 * PAGE], seen[3 * PAGE];
    pattern_fill(seed, 1234, bytes, sizeof bytes);
    int memory = (int)SYS(open("/proc/self/mem", O_RDWR | O_CLOEXEC));
    for (int i = 0; i < 2; i++) {
        uint8_t *at = to + (40 + 10 * (size_t)i) * PAGE + 50;
        struct iovec own = {bytes, sizeof bytes}, there = {at, sizeof bytes}, back = {seen, sizeof seen};
        drive_out();
        ssize_t n = i ? process_vm_writev(getpid(), &own, 1, &there, 1, 0)
                      : by_file(memory, true, bytes, sizeof bytes, at);
        CHECK(n == sizeof bytes, "a write into memory gave %zd: %s", n, strerror(errno));
        drive_out();
        n = i ? by_file(memory, false, seen, sizeof seen, at)
              : process_vm_readv(getpid(), &back, 1, &there, 1, 0);
        CHECK(n == sizeof seen && memcmp(seen, bytes, sizeof seen) == 0, "a read of memory gave %zd", n);
        SYS(msync(to, LEN, MS_SYNC));
        pread_all(to_fd, seen, sizeof seen, (uint64_t)(at - to));
        CHECK(memcmp(seen, bytes, sizeof seen) == 0, "the file has other bytes");
    }
    SYS(close(memory));
}

/* Advice on oneself as on another process. */
static void advice(void)
{
    int self = (int)SYS(syscall(SYS_pidfd_open, getpid(), 0));
    int advices[] = {MADV_DONTNEED, MADV_PAGEOUT, MADV_COLD, MADV_WILLNEED, MADV_DONTNEED};
    int handles[] = {self, -10000};
    for (size_t i = 0; i < sizeof advices / sizeof *advices * 2; i++) {
        uint8_t *at = to + (100 + 20 * i) * PAGE;
        memset(at, (int)i + 1, 8 * PAGE);
        struct iovec parts[2] = {{at, PAGE}, {at + 2 * PAGE, 4 * PAGE}};
        ssize_t n = process_madvise(handles[i % 2], parts, 2, advices[i / 2], 0);
        /* Kernels before 6.13 refuse the first, and those before 6.14 the second. */
        CHECK(n == 5 * (ssize_t)PAGE || (n == -1 && (errno == EINVAL || errno == EBADF)),
              "advice %d gave %zd: %s", advices[i / 2], n, strerror(errno));
        bytes_check(at, (uint8_t)(i + 1), 8 * PAGE, "after process_madvise");
    }
    uint8_t *at = to + 400 * PAGE;
    memset(at, 9, 4 * PAGE);
    struct iovec bad[3] = {{at, PAGE}, {at + 1, PAGE}, {at + PAGE, PAGE}};
    CHECK(process_madvise(self, bad, 3, MADV_COLD, 0) == (ssize_t)PAGE, "up to a bad part: %s",
          strerror(errno));
    fails(process_madvise(self, bad + 1, 1, MADV_COLD, 0), EINVAL, "a bad part");
    fails(process_madvise(self, bad, 1, 4711, 0), EINVAL, "bad advice");
    fails(process_madvise(self, bad, 1, MADV_COLD, 1), EINVAL, "bad flags");
    fails(process_madvise(self, BAD, 1, MADV_COLD, 0), EFAULT, "no parts");
    fails(process_madvise(fd, bad, 1, MADV_COLD, 0), EBADF, "no process");
    CHECK(process_madvise(self, bad, 0, MADV_COLD, 0) == 0, "nothing to advise: %s", strerror(errno));
    bytes_check(at, 9, 4 * PAGE, "after bad advice");
    SYS(close(self));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: zerocopy FILE SEED");
    path = argv[1];
    seed = strtoull(argv[2], NULL, 10);
    to_seed = seed + 1;
    fd = (int)SYS(open(path, O_RDONLY | O_CLOEXEC));
    from = map_file(fd, LEN, PROT_READ, MAP_SHARED, 0);
    to_fd = make_file(path, ".to", to_seed, LEN);
    to = map_file(to_fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    evict = map_file(make_file(path, ".evict", seed + 2, LEN), LEN, PROT_READ, MAP_SHARED, 0);
    PART(vmsplice_of_mapped_pages);
    PART(tee_of_a_mapped_file);
    PART(sends_of_mapped_pages);
    PART(long_sends);
    PART(bad_sends);
    PART(ways_of_debuggers);
    PART(advice);
    return 0;
}
