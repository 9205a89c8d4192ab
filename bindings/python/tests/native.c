// What the tests have done by C: loads in a thread that the interpreter does not know, and a handler of a
// signal that jumps.

#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

struct pages {
    volatile unsigned char *first;
    size_t count;
    long sum;
};

static void *sum_of(void *argument) {
    struct pages *pages = argument;
    // The caller waits for this thread by now.
    usleep(100000);
    for (size_t nth = 0; nth < pages->count; nth++)
        pages->sum += pages->first[nth * 4096];
    return NULL;
}

// The sum of the first bytes of `count` pages, which another thread loads.
long sum_in_a_thread(unsigned char *first, size_t count) {
    struct pages pages = {first, count, 0};
    pthread_t thread;
    if (pthread_create(&thread, NULL, sum_of, &pages) != 0)
        return -1;
    pthread_join(thread, NULL);
    return pages.sum;
}

static sigjmp_buf before_load;
static int masked;

static void jump(int signal) {
    sigset_t now;
    (void)signal;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    masked = sigismember(&now, SIGUSR1);
    siglongjmp(before_load, 1);
}

// Registers a handler that jumps, with SIGUSR1 in its mask.
int register_jump(int signal, int flags) {
    struct sigaction action = {.sa_handler = jump, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR1);
    return sigaction(signal, &action, NULL);
}

// The byte at an address; -1: the handler has jumped, with SIGUSR1 masked; -2: without.
int load(volatile unsigned char *address) {
    if (sigsetjmp(before_load, 1) != 0)
        return masked ? -1 : -2;
    return *address;
}
