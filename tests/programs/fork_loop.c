/* Children, one after the other, that store to a part of their memory and end.
 *   fork_loop CHILDREN */
#include "common.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
    const size_t len = 24 << 20;
    CHECK(argc == 2, "usage: fork_loop CHILDREN");
    uint64_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap: %s", strerror(errno));
    for (size_t i = 0; i < len / 8; i++)
        memory[i] = i * 0x9e3779b97f4a7c15u;
    for (int round = 0; round < atoi(argv[1]); round++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork: %s", strerror(errno));
        if (child == 0) {
            for (size_t i = 0; i < len / 8; i += 8192) {
                CHECK(memory[i] == i * 0x9e3779b97f4a7c15u, "word %zu", i);
                memory[i]++;
            }
            _exit(42);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "the wait status is %#x", status);
    }
    puts("ok");
}
