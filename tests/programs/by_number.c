/* Calls by their number, through syscall(2), on mapped files and on more memory than the budget. Prints a
 * line for each part.
 *
 *   by_number FILE */
#include "common.h"
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#define BYTES (48 * MIB)
#define PAGES (BYTES / PAGE)

static const char *path;

static uint64_t *filled(void)
{
    uint64_t *memory = (uint64_t *)SYS(syscall(SYS_mmap, 0, BYTES, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (size_t word = 0; word < BYTES / 8; word++)
        memory[word] = mix(word);
    return memory;
}

static void check(const uint64_t *memory, size_t from, size_t to)
{
    for (size_t page = from; page < to; page++)
        for (size_t word = page * 512; word < (page + 1) * 512; word += 73)
            CHECK(memory[word] == mix(word), "word %zu is %#lx", word, (long)memory[word]);
}

static void ranges(void)
{
    uint64_t *memory = filled();
    char *bytes = (char *)memory;
    SYS(syscall(SYS_madvise, memory, BYTES / 4, MADV_DONTNEED));
    for (size_t word = 0; word < BYTES / 4 / 8; word++)
        CHECK(memory[word] == 0, "word %zu is not zero", word);
    check(memory, PAGES / 4, PAGES);
    SYS(syscall(SYS_mprotect, memory, BYTES / 4, PROT_READ));
    STORE_RAISES(memory, SIGSEGV, SEGV_ACCERR);
    SYS(syscall(SYS_munmap, memory, BYTES / 4));
    LOAD_RAISES(memory, SIGSEGV, SEGV_MAPERR);
    char *place = bytes + BYTES / 4;
    char *moved = (char *)SYS(syscall(SYS_mremap, place, BYTES / 4, BYTES / 2, MREMAP_MAYMOVE, 0));
    for (size_t word = 0; word < BYTES / 4 / 8; word++)
        CHECK(((uint64_t *)moved)[word] == mix(BYTES / 4 / 8 + word), "a moved word %zu", word);
    char *over = (char *)SYS(syscall(SYS_mmap, bytes + BYTES / 2, BYTES / 4, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    CHECK(over == bytes + BYTES / 2 && over[5] == 0, "a mapping over another one");
    check(memory, 3 * PAGES / 4, PAGES);
    SYS_FAILS(syscall(SYS_munmap, bytes + 1, PAGE), EINVAL);
    SYS_FAILS(syscall(100000), ENOSYS);
    CHECK(syscall(SYS_getpid) == getpid(), "a call that nobody stands before");
    SYS(munmap(bytes + BYTES / 2, BYTES / 2));
    SYS(munmap(moved, BYTES / 2));
}

static void children(void)
{
    uint64_t *memory = filled();
    for (int way = 0; way < 3; way++) {
        pid_t child = (pid_t)SYS(way == 0 ? syscall(SYS_fork)
                                          : syscall(SYS_clone, way == 1 ? SIGCHLD : SIGCHLD | CLONE_FILES,
                                                    0, 0, 0, 0));
        if (child == 0) {
            check(memory, 0, PAGES);
            memory[7] = 0;
            syscall(SYS_exit_group, 7);
        }
        int status;
        SYS(waitpid(child, &status, 0));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "way %d ended with %#x", way, status);
        check(memory, 0, PAGES);
    }
    SYS(munmap(memory, BYTES));
}

static void files(void)
{
    int fd = (int)SYS(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0600));
    SYS(syscall(SYS_ftruncate, fd, BYTES));
    uint8_t *map = map_file(fd, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    char text[] = "by its number";
    for (size_t at = 0; at < BYTES; at += MIB) {
        CHECK(map[at] == 0, "byte %zu is not zero", at);
        CHECK(syscall(SYS_pwrite64, fd, text, sizeof text, at) == sizeof text, "pwrite");
        CHECK(memcmp(map + at, text, sizeof text) == 0, "the mapping has another text at %zu", at);
        struct iovec part = {(void *)"x", 1};
        CHECK(syscall(SYS_pwritev2, fd, &part, 1, at + 2, 0, 0) == 1 && map[at + 2] == 'x', "pwritev2");
        map[at + 1] = 'Y';
        char read[3];
        CHECK(syscall(SYS_pread64, fd, read, 3, at) == 3 && memcmp(read, "bYx", 3) == 0, "pread: %.3s", read);
    }
    SYS(syscall(SYS_ftruncate, fd, BYTES / 2));
    LOAD_RAISES(map + BYTES / 2, SIGBUS, BUS_ADRERR);
    SYS(munmap(map, BYTES));
    SYS(syscall(SYS_close, fd));
}

/* A segment in place of managed memory, and in a hole of it. */
static void segments(void)
{
    uint64_t *memory = filled();
    char *bytes = (char *)memory;
    int segment = (int)SYS(shmget(IPC_PRIVATE, BYTES / 4, 0600 | IPC_CREAT));
    CHECK(shmat(segment, bytes, SHM_REMAP) == bytes && bytes[0] == 0, "in place of memory");
    SYS(munmap(bytes + BYTES / 2, BYTES / 4));
    CHECK((char *)syscall(SYS_shmat, segment, bytes + BYTES / 2, 0) == bytes + BYTES / 2, "in a hole");
    *(volatile char *)(bytes + 5) = 5;
    CHECK(*(volatile char *)(bytes + BYTES / 2 + 5) == 5, "both are the same segment");
    SYS_FAILS(shmat(segment, bytes + BYTES / 4, 0), EINVAL);
    check(memory, PAGES / 4, PAGES / 2);
    check(memory, 3 * PAGES / 4, PAGES);
    SYS(shmdt(bytes));
    SYS(shmdt(bytes + BYTES / 2));
    SYS(shmctl(segment, IPC_RMID, NULL));
    SYS(munmap(bytes, BYTES));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: by_number FILE");
    path = argv[1];
    probe_install();
    PART(ranges);
    PART(children);
    PART(files);
    PART(segments);
    return 0;
}
