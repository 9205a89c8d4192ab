/* Asynchronous reads and writes of mapped files: libc's, and libaio's if somebody offers its function.
 *   aio FILE     FILE is made */
#include "common.h"
#include <aio.h>
#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>

#define LEN (2 * MIB)
#define AT (MIB + 100)

static int fd;
static uint8_t *map;

/* The pages at AT are in memory, and others are dirty. */
static void fresh(const char *path, const char *suffix)
{
    fd = make_file(path, suffix, 1, LEN);
    map = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    (void)*(volatile uint8_t *)(map + AT);
    memcpy(map + AT + PAGE, "stored", 6);
}

static ssize_t finish(struct aiocb *block)
{
    const struct aiocb *list[] = {block};
    while (aio_error(block) == EINPROGRESS)
        SYS(aio_suspend(list, 1, NULL));
    return aio_return(block);
}

static void of_libc(const char *path)
{
    char text[8] = "written", seen[8] = "";
    fresh(path, ".libc");
    struct aiocb write = {.aio_fildes = fd, .aio_buf = text, .aio_nbytes = 7, .aio_offset = (off_t)AT};
    SYS(aio_write(&write));
    CHECK(finish(&write) == 7 && memcmp(map + AT, "written", 7) == 0, "aio_write: %.7s", map + AT);
    memcpy(map + AT, "in turn", 7);
    struct aiocb read = {.aio_fildes = fd, .aio_buf = seen, .aio_nbytes = 7, .aio_offset = (off_t)AT};
    SYS(aio_read(&read));
    CHECK(finish(&read) == 7 && memcmp(seen, "in turn", 7) == 0, "aio_read: %.7s", seen);
    struct aiocb sync = {.aio_fildes = fd};
    SYS(aio_fsync(O_SYNC, &sync));
    CHECK(finish(&sync) == 0, "aio_fsync");
    SYS(munmap(map, LEN));

    fresh(path, ".list");
    write = (struct aiocb){.aio_fildes = fd, .aio_buf = text, .aio_nbytes = 7, .aio_offset = (off_t)AT,
                           .aio_lio_opcode = LIO_WRITE};
    read = (struct aiocb){.aio_fildes = fd, .aio_buf = seen, .aio_nbytes = 6,
                          .aio_offset = (off_t)(AT + PAGE), .aio_lio_opcode = LIO_READ};
    struct aiocb *both[] = {&write, NULL, &read};
    SYS(lio_listio(LIO_WAIT, both, 3, NULL));
    CHECK(memcmp(map + AT, "written", 7) == 0 && memcmp(seen, "stored", 6) == 0, "lio_listio");
    /* Mapped anew, it is the same. */
    SYS(munmap(map, LEN));
    map = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    memcpy(text, "another", 7);
    SYS(lio_listio(LIO_WAIT, both, 1, NULL));
    CHECK(memcmp(map + AT, "another", 7) == 0 && memcmp(map + AT + PAGE, "stored", 6) == 0, "mapped anew");
    SYS(munmap(map, LEN));
}

/* As in libaio: gives the negative errno. */
static int submit_itself(void *context, long n, struct iocb **blocks)
{
    long r = syscall(SYS_io_submit, context, n, blocks);
    return r < 0 ? -errno : (int)r;
}

static void of_libaio(const char *path)
{
    int (*submit)(void *, long, struct iocb **) =
        (int (*)(void *, long, struct iocb **))dlsym(RTLD_DEFAULT, "io_submit");
    if (submit == NULL)
        submit = submit_itself;
    char text[8] = "written", seen[8] = "";
    fresh(path, ".libaio");
    void *context = NULL;
    SYS(syscall(SYS_io_setup, 8, &context));
    struct iocb write = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (uint32_t)fd,
                         .aio_buf = (uintptr_t)text, .aio_nbytes = 7, .aio_offset = (int64_t)AT};
    struct iocb read = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)fd,
                        .aio_buf = (uintptr_t)seen, .aio_nbytes = 6, .aio_offset = (int64_t)(AT + PAGE)};
    struct iocb *both[] = {&write, &read};
    CHECK(submit(context, 2, both) == 2, "io_submit");
    struct io_event events[2];
    CHECK(SYS(syscall(SYS_io_getevents, context, 2, 2, events, NULL)) == 2, "io_getevents");
    CHECK(events[0].res > 0 && events[1].res > 0, "the results are %lld and %lld", (long long)events[0].res,
          (long long)events[1].res);
    CHECK(memcmp(map + AT, "written", 7) == 0 && memcmp(seen, "stored", 6) == 0, "io_submit");
    errno = 0;
    CHECK(submit(context, 1, (struct iocb **)1) == -EFAULT, "a bad list");
    CHECK(submit(NULL, 1, both) == -EINVAL, "a bad context");
    SYS(syscall(SYS_io_destroy, context));
    SYS(munmap(map, LEN));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: aio FILE");
    PART(of_libc, argv[1]);
    PART(of_libaio, argv[1]);
    return 0;
}
