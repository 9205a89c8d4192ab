/* A program to which a system call is denied by a filter, before it maps anything: whatever a manager needs
 * of the call, the memory is right, and the program ends.
 *
 * denied NUMBER ERRNO FILE: the call of this number fails with this error, for all threads to come. FILE is
 * mapped, too; it has 4 MiB of zeros.
 * denied NUMBER ERRNO -- COMMAND...: the same, for a command. */
#include "common.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void deny(long call, unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SYS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* Stores to each page of the memory, and loads them all. */
static void use(volatile unsigned char *memory, size_t len)
{
    for (size_t at = 0; at < len; at += 4096)
        memory[at] = (unsigned char)(at / 4096 % 251);
    for (size_t at = 0; at < len; at += 4096)
        CHECK(memory[at] == (unsigned char)(at / 4096 % 251), "at %zu: %d", at, memory[at]);
}

int main(int argc, char **argv)
{
    enum { FILE_BYTES = 4 << 20, BYTES = 20 << 20 };
    CHECK(argc >= 4, "usage: denied NUMBER ERRNO FILE, or denied NUMBER ERRNO -- COMMAND...");
    if (argc > 4) {
        deny(atol(argv[1]), (unsigned)atol(argv[2]));
        execv(argv[4], argv + 4);
        return 40;
    }
    int fd = SYS(open(argv[3], O_RDWR));
    deny(atol(argv[1]), (unsigned)atol(argv[2]));
    unsigned char *file = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED)
        return 41;
    use(file, FILE_BYTES);
    unsigned char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 41;
    use(memory, BYTES);
    return 42;
}
