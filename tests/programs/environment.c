/* Memory of each kind, three times the budget, in an environment that lacks something.
 *
 * environment heap|array|read|store FILE: stores and loads 72 MiB; FILE is made for `read` and `store`. */
#include "common.h"

#include <string.h>
#include <sys/mman.h>

enum { BYTES = 72 << 20, STEP = 4096 };

static uint64_t value(size_t at)
{
    return (at / STEP + 1) * 0x9e3779b97f4a7c15u;
}

static void fill(unsigned char *memory)
{
    for (size_t at = 0; at < BYTES; at += STEP) {
        uint64_t v = value(at);
        memcpy(memory + at, &v, sizeof v);
    }
}

static void check(const unsigned char *memory)
{
    for (size_t at = 0; at < BYTES; at += STEP) {
        uint64_t v;
        memcpy(&v, memory + at, sizeof v);
        CHECK(v == value(at), "at %zu: %llx", at, (unsigned long long)v);
    }
}

static int make(const char *path)
{
    int fd = SYS(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    SYS(ftruncate(fd, BYTES));
    return fd;
}

static void write_values(const char *path)
{
    int fd = make(path);
    for (size_t at = 0; at < BYTES; at += STEP) {
        unsigned char page[STEP] = {0};
        uint64_t v = value(at);
        memcpy(page, &v, sizeof v);
        CHECK(pwrite(fd, page, STEP, (off_t)at) == STEP, "at %zu: %s", at, strerror(errno));
    }
    SYS(fsync(fd));
    SYS(close(fd));
}

static unsigned char *map(int prot, int flags, int fd)
{
    unsigned char *memory = mmap(NULL, BYTES, prot, flags, fd, 0);
    CHECK(memory != MAP_FAILED, "mmap: %s", strerror(errno));
    return memory;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: environment heap|array|read|store FILE");
    const char *kind = argv[1], *path = argv[2];
    unsigned char *memory;
    if (!strcmp(kind, "heap")) {
        memory = malloc(BYTES);
        CHECK(memory, "malloc: %s", strerror(errno));
        fill(memory);
    } else if (!strcmp(kind, "array")) {
        memory = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        fill(memory);
    } else if (!strcmp(kind, "read")) {
        write_values(path);
        int fd = SYS(open(path, O_RDONLY | O_CLOEXEC));
        memory = map(PROT_READ, MAP_SHARED, fd);
        SYS(close(fd));
    } else {
        CHECK(!strcmp(kind, "store"), "no kind: %s", kind);
        int fd = make(path);
        memory = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
        SYS(close(fd));
        fill(memory);
        SYS(msync(memory, BYTES, MS_SYNC));
    }
    check(memory);
    puts("right");
    return 0;
}
