/* Forks while the thread's own transfers by io_uring are under way. The kernel ends them on the thread's way
 * out of a system call, and reaches for their memory then, which is out.
 *   ring_forks FILE ROUNDS     FILE is the pattern of seed 5, of 4 MiB at least */
#include "common.h"
#include <liburing.h>

enum { PIECES = 8, PIECE = 16 << 10, BYTES = PIECES * PIECE, SPARE = 4 << 20 };

static void begin_reads(struct io_uring *ring, int fd, uint8_t *memory, off_t from)
{
    for (int i = 0; i < PIECES; i++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
        io_uring_prep_read(sqe, fd, memory + i * PIECE, PIECE, (uint64_t)(from + i * PIECE));
    }
    CHECK(io_uring_submit(ring) == PIECES, "io_uring_submit");
}

static void end_reads(struct io_uring *ring)
{
    for (int i = 0; i < PIECES; i++) {
        struct io_uring_cqe *cqe;
        int error;
        while ((error = io_uring_wait_cqe(ring, &cqe)) == -EINTR)
            ;
        CHECK(error == 0 && cqe->res == PIECE, "a read gave %d, %d", error, error ? 0 : cqe->res);
        io_uring_cqe_seen(ring, cqe);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: ring_forks FILE ROUNDS");
    int fd = SYS(open(argv[1], O_RDONLY));
    struct io_uring ring;
    int error = io_uring_queue_init(PIECES, &ring, 0);
    CHECK(error == 0, "io_uring_queue_init: %s", strerror(-error));
    uint8_t *memory = mmap(NULL, BYTES + SPARE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    uint8_t *spare = memory + BYTES;
    for (int round = 0; round < atoi(argv[2]); round++) {
        off_t from = (off_t)(round % 16) * BYTES;
        memset(memory, round, BYTES);
        memset(spare, round, SPARE);
        /* The file comes from the disk, after the thread has gone on. */
        SYS(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
        SYS(madvise(memory, BYTES, MADV_PAGEOUT));
        begin_reads(&ring, fd, memory, from);
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            for (int i = 0; i < SPARE; i += 4096)
                CHECK(spare[i] == (uint8_t)round, "the child has %d at %d of round %d", spare[i], i, round);
            _exit(42);
        }
        int status;
        SYS(waitpid(child, &status, 0));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "round %d: wait status %#x", round, status);
        end_reads(&ring);
        pattern_check(5, (uint64_t)from, memory, BYTES, "what was read");
    }
    puts("ok");
    return 0;
}
