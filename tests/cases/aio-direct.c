// asynchronous direct reads and writes of a file, from and to anonymous memory, while another thread makes
// all else leave memory
#include "case.h"
#include <linux/aio_abi.h>
#define BYTES (8 * MB)
#define PART ((size_t)64 << 10)
#define PARTS (BYTES / PART)
#define ROUNDS 6
static volatile int over;
static size_t pressed_wrong;
static void *presses(void *unused) {
    (void)unused;
    while (!over)
        pressed_wrong += press(PRESS);
    return 0;
}
static aio_context_t ring;
static void go(int fd, int command, char *memory) {
    static struct iocb blocks[PARTS];
    struct io_event events[PARTS];
    for (size_t i = 0; i < PARTS; i++) {
        struct iocb *block = &blocks[i];
        *block = (struct iocb){.aio_lio_opcode = command, .aio_fildes = fd, .aio_nbytes = PART};
        block->aio_buf = (uintptr_t)(memory + i * PART);
        block->aio_offset = i * PART;
        CHK(syscall(SYS_io_submit, ring, 1, &block) == 1);
    }
    CHK(syscall(SYS_io_getevents, ring, PARTS, PARTS, events, NULL) == PARTS);
    for (size_t i = 0; i < PARTS; i++)
        CHK(events[i].res == (int64_t)PART);
}
int main() {
    int fd = open("case.data", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    CHK(fd >= 0);
    CHK(!syscall(SYS_io_setup, PARTS, &ring));
    char *out = big(8), *in = big(8);
    pthread_t thread;
    pthread_create(&thread, 0, presses, 0);
    size_t wrong = 0;
    for (int round = 1; round <= ROUNDS; round++) {
        fill(out, BYTES, round);
        go(fd, IOCB_CMD_PWRITE, out);
        go(fd, IOCB_CMD_PREAD, in);
        wrong += bad(in, BYTES, round) + bad(out, BYTES, round);
    }
    over = 1;
    pthread_join(thread, 0);
    printf("wrong %zu pressed wrong %zu\n", wrong, pressed_wrong);
    unlink("case.data");
    return wrong || pressed_wrong || B;
}
