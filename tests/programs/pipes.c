/* Transfers that wait for a pipe, into and out of a file that is mapped: a wait holds nobody off, and ends as
 * the kernel's.
 *   pipes FILE     FILE is made anew */
#include "common.h"
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static const char *path;
static const size_t LEN = 4 * 1024 * 1024;
static const uint64_t SEED = 3;
static int fd, pipes[2];
static uint8_t *at;

struct job {
    unsigned flags;
    off_t offset;
    off_t *to; /* NULL: at the position */
    size_t len;
    ssize_t result;
    int error;
    _Atomic int tid;
    _Atomic bool done;
};

static void *splice_in(void *argument)
{
    struct job *job = argument;
    job->tid = (int)syscall(SYS_gettid);
    job->result = splice(pipes[0], NULL, fd, job->to, job->len, job->flags);
    job->error = errno;
    job->done = true;
    return NULL;
}

/* Waits until a thread sleeps in a pipe. */
static void wait_until_blocked(struct job *job)
{
    for (;;) {
        char name[64], text[256] = "";
        snprintf(name, sizeof name, "/proc/self/task/%d/syscall", job->tid);
        int info = job->tid ? open(name, O_RDONLY) : -1;
        if (info >= 0) {
            ssize_t n = read(info, text, sizeof text - 1);
            long call = n > 0 ? strtol(text, NULL, 10) : -1;
            close(info);
            /* "running" is 0, and so is read(2), with what follows it. */
            if (strncmp(text, "running", 7) && (call == SYS_splice || call == SYS_read))
                return;
        }
        CHECK(!job->done, "splice gave %zd: %s", job->result, strerror(job->error));
        sleep_ms(1);
    }
}

static _Atomic unsigned handled;

static void handler(int signal)
{
    (void)signal;
    handled++;
}

static void handle(int signal, int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    SYS(sigaction(signal, &action, NULL));
}

static pthread_t start(struct job *job)
{
    pthread_t id;
    SPAWN(&id, splice_in, job);
    wait_until_blocked(job);
    return id;
}

static void give(const char *bytes, size_t n)
{
    CHECK(write(pipes[1], bytes, n) == (ssize_t)n, "write: %s", strerror(errno));
}

static void result(struct job *job, pthread_t id, ssize_t n, int error)
{
    pthread_join(id, NULL);
    CHECK(job->result == n, "splice gave %zd (%s), not %zd", job->result, strerror(job->error), n);
    CHECK(n >= 0 || job->error == error, "splice failed with %s, not %s", strerror(job->error),
          strerror(error));
}

/* Others read and write the file meanwhile, what is stored is written back, and the splice then brings its
 * bytes. */
static void others_go_on(void)
{
    off_t place = 100;
    struct job job = {.to = &place, .len = LEN / 2};
    pthread_t id = start(&job);
    double begun = now_seconds();
    uint8_t seen[200];
    for (int i = 0; i < 50; i++) {
        at[90 + i] = (uint8_t)i;
        pread_all(fd, seen, sizeof seen, 50);
        CHECK(seen[40 + i] == i, "a read of a store");
        SYS(msync(at, PAGE, MS_SYNC));
        pwrite_all(fd, "x", 1, 3000);
        SYS(fsync(fd));
    }
    CHECK(now_seconds() - begun < 8, "others were held off for %g s", now_seconds() - begun);
    give("spliced", 7);
    result(&job, id, 7, 0);
    CHECK(place == 107, "the offset is %lld", (long long)place);
    CHECK(!memcmp(at + 100, "spliced", 7) && at[107] == 17, "the mapping");
    /* At the position: lseek and write at it go on, too. */
    SYS(lseek(fd, 5000, SEEK_SET));
    job = (struct job){.len = LEN / 2};
    id = start(&job);
    CHECK(lseek(fd, 0, SEEK_CUR) == 5000, "lseek: %s", strerror(errno));
    CHECK(write(fd, "w", 1) == 1, "write: %s", strerror(errno));
    give("spliced", 7);
    result(&job, id, 7, 0);
    off_t end = lseek(fd, 0, SEEK_CUR);
    CHECK((end == 5008 && !memcmp(at + 5000, "wspliced", 8)) ||
              (end == 5007 && !memcmp(at + 5000, "spliced", 7)),
          "the position is %lld", (long long)end);
}

static void signals(void)
{
    struct job job = {.len = 100};
    handle(SIGUSR1, 0);
    handle(SIGUSR2, SA_RESTART);
    pthread_t id = start(&job);
    pthread_kill(id, SIGUSR2);
    double begun = now_seconds();
    while (handled < 1 && now_seconds() - begun < 8)
        sleep_ms(1);
    CHECK(handled == 1, "a signal was held off");
    sleep_ms(20);
    wait_until_blocked(&job);
    give("one", 3);
    result(&job, id, 3, 0);
    job = (struct job){.len = 100};
    id = start(&job);
    pthread_kill(id, SIGUSR1);
    result(&job, id, -1, EINTR);
    CHECK(handled == 2, "the signal was not handled");
}

static void cancelled(void)
{
    struct job job = {.len = 100};
    pthread_t id = start(&job);
    pthread_cancel(id);
    void *how;
    pthread_join(id, &how);
    CHECK(how == PTHREAD_CANCELED, "the thread was not cancelled");
    /* And nothing is held off afterwards. */
    at[9] = 9;
    SYS(msync(at, PAGE, MS_SYNC));
}

static void without_waiting(void)
{
    off_t place = 0;
    SYS_FAILS(splice(pipes[0], NULL, fd, &place, 10, SPLICE_F_NONBLOCK), EAGAIN);
    SYS(fcntl(pipes[0], F_SETFL, O_NONBLOCK));
    SYS_FAILS(splice(pipes[0], NULL, fd, &place, 10, 0), EAGAIN);
    SYS(fcntl(pipes[0], F_SETFL, 0));
    CHECK(splice(pipes[0], NULL, fd, &place, 0, 0) == 0, "nothing");
    SYS_FAILS(splice(pipes[0], &place, fd, NULL, 10, 0), ESPIPE);
    SYS_FAILS(splice(pipes[0], NULL, fd, NULL, 10, 0x8000), EINVAL);
    SYS_FAILS(splice(pipes[0], NULL, -1, NULL, 10, 0), EBADF);
    int reader = (int)SYS(open(path, O_RDONLY)), appender = (int)SYS(open(path, O_WRONLY | O_APPEND));
    SYS_FAILS(splice(pipes[0], NULL, reader, NULL, 10, 0), EBADF);
    SYS_FAILS(splice(pipes[0], NULL, appender, NULL, 10, 0), EINVAL);
    place = -5;
    SYS_FAILS(splice(pipes[0], NULL, fd, &place, 10, 0), EINVAL);
    SYS(close(reader));
    SYS(close(appender));
    /* What is there comes at once, though there is less than was asked for. */
    give("some", 4);
    place = 200;
    CHECK(splice(pipes[0], NULL, fd, &place, 1000, 0) == 4 && place == 204, "what is there: %s",
          strerror(errno));
    CHECK(!memcmp(at + 200, "some", 4), "the mapping");
}

/* A full pipe: the file is the source, and holds nobody off either. */
static void *splice_out(void *argument)
{
    struct job *job = argument;
    job->tid = (int)syscall(SYS_gettid);
    off_t from = 0;
    for (size_t done = 0; done < LEN;) {
        ssize_t n = job->flags ? sendfile(pipes[1], fd, &from, LEN - done)
                               : splice(fd, &from, pipes[1], NULL, LEN - done, 0);
        CHECK(n > 0, "%zd: %s", n, strerror(errno));
        done += (size_t)n;
    }
    return NULL;
}

static void full_pipes(unsigned by_sendfile)
{
    struct job job = {.flags = by_sendfile};
    uint8_t *bytes = malloc(LEN);
    at[LEN - 5] = 0x5b;
    pthread_t id;
    SPAWN(&id, splice_out, &job);
    sleep_ms(50);
    at[LEN - 6] ^= 1;
    SYS(msync(at, LEN, MS_SYNC));
    pwrite_all(fd, "y", 1, 77);
    for (size_t done = 0; done < LEN;)
        done += (size_t)SYS(read(pipes[0], bytes + done, LEN - done));
    pthread_join(id, NULL);
    CHECK(!memcmp(bytes + LEN / 2, at + LEN / 2, LEN / 2), "what came through the pipe");
    free(bytes);
}

static void the_end(void)
{
    struct job job = {.len = 100};
    pthread_t id = start(&job);
    SYS(close(pipes[1]));
    result(&job, id, 0, 0);
    SYS(close(pipes[0]));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: pipes FILE");
    path = argv[1];
    fd = make_file(path, "", SEED, LEN);
    at = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    at[0] = 1;
    SYS(pipe(pipes));
    PART(without_waiting);
    PART(others_go_on);
    PART(signals);
    PART(cancelled);
    PART(full_pipes, 0);
    PART(full_pipes, 1);
    PART(the_end);
    return 0;
}
