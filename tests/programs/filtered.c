/* Runs a command to which system calls are denied by a filter, as in a container.
 *
 * filtered NUMBER[:ERRNO]... -- COMMAND...: these calls fail with the error (EPERM, if none is given). */
#include "common.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>

int main(int argc, char **argv)
{
    enum { MOST = 60 };
    struct sock_filter filter[2 * MOST + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    unsigned short len = 1;
    int at = 1;
    for (; at < argc && strcmp(argv[at], "--"); at++) {
        CHECK(at <= MOST, "at most %d calls", MOST);
        char *rest;
        unsigned long call = strtoul(argv[at], &rest, 10);
        unsigned long error = *rest == ':' ? strtoul(rest + 1, NULL, 10) : EPERM;
        filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
        filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error);
    }
    filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    CHECK(at + 1 < argc, "usage: filtered NUMBER[:ERRNO]... -- COMMAND...");
    struct sock_fprog program = {.len = len, .filter = filter};
    SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SYS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    execvp(argv[at + 1], argv + at + 1);
    CHECK(0, "%s: %s", argv[at + 1], strerror(errno));
}
