/* A handler reads memory, of which there is more than the budget, half a millisecond after it did so before,
 * while the program forks. Prints ok. */
#include "common.h"
#include <sys/time.h>

#define BYTES (64 * MIB)
#define FORKS 40

static volatile uint64_t *memory;
static volatile uint64_t wrong, signals;

/* Only once, so that the program comes forward however long the handler takes. */
static void alarm_soon(void)
{
    struct itimerval soon = {.it_value = {0, 500}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void on_alarm(int signal)
{
    (void)signal;
    static uint64_t seed = 1;
    for (int i = 0; i < 4; i++) {
        size_t word = (seed = mix(seed)) % (BYTES / 8);
        wrong += memory[word] != mix(word);
    }
    signals++;
    alarm_soon();
}

int main(void)
{
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap: %s", strerror(errno));
    for (size_t word = 0; word < BYTES / 8; word++)
        memory[word] = mix(word);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    SYS(sigaction(SIGALRM, &action, NULL));
    alarm_soon();
    for (int i = 0; i < FORKS; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0)
            _exit(memory[7] == mix(7) ? 0 : 1);
        int status;
        while (waitpid(child, &status, 0) < 0)
            CHECK(errno == EINTR, "waitpid: %s", strerror(errno));
        CHECK(status == 0, "child %d ended with %#x", i, status);
    }
    CHECK(wrong == 0 && signals > FORKS, "%llu words are wrong after %llu signals", (unsigned long long)wrong,
          (unsigned long long)signals);
    printf("ok\n");
    return 0;
}
