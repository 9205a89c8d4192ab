// What the tests have done by C: loads in a thread that the interpreter does not know, and a handler of signals
// that jumps.

#define _GNU_SOURCE
#include <pthread.h>
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
