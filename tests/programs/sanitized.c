/* A program to be compiled with a sanitizer: memory, threads, and the error that is asked for.
 *
 * sanitized [freed | lost | race | overflow] */
#include "common.h"

enum { THREADS = 4 };
#define BLOCK (8 * MIB)
#define MAPPING (32 * MIB)

static int shared;
static char *volatile kept;

static void *work(void *argument)
{
    long *sum = argument;
    unsigned char *block = malloc(BLOCK);
    CHECK(block != NULL, "malloc");
    memset(block, 3, BLOCK);
    *sum = 0;
    for (size_t at = 0; at < BLOCK; at += PAGE)
        *sum += block[at];
    free(block);
    return NULL;
}

static void *store(void *argument)
{
    shared++;
    return argument;
}

static void run_threads(void *(*start)(void *), long *arguments)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, start, &arguments[i]) == 0, "pthread_create");
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
}

/* The pointer to it is nowhere afterwards. */
__attribute__((noinline)) static void lose(void)
{
    kept = malloc(MIB);
    kept[0] = 1;
    kept = NULL;
}

int main(int argc, char **argv)
{
    const char *error = argc > 1 ? argv[1] : "none";
    long sums[THREADS];
    run_threads(work, sums);
    char *mapping = mmap(NULL, MAPPING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapping != MAP_FAILED, "mmap");
    memset(mapping, 5, MAPPING);
    printf("%ld %d\n", sums[0] + sums[THREADS - 1], mapping[MIB]);
    fflush(stdout);
    if (strcmp(error, "freed") == 0) {
        kept = malloc(MIB);
        free(kept);
        return kept[7];
    }
    if (strcmp(error, "lost") == 0)
        lose();
    if (strcmp(error, "race") == 0)
        run_threads(store, sums);
    if (strcmp(error, "overflow") == 0) {
        volatile int most = 0x7fffffff;
        most++;
        printf("%d\n", most);
    }
    return 7;
}
