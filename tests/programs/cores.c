/* Memory that a core dump is to have.
 *
 * cores MIB MODE: fills MIB of memory with words that do not compress, says where they are, and then
 *   abort, segv, quit: ends by that signal; thread: a thread does that, by a null pointer;
 *   pause: waits for a signal.
 * Word n of the memory is word(n). */
#include "common.h"

static uint32_t word(uint32_t n)
{
    n = (n ^ 61) ^ (n >> 16);
    n *= 9;
    n ^= n >> 4;
    n *= 0x27d4eb2d;
    return n ^ n >> 15;
}

uint32_t *words;
volatile int *nothing;

static void *store_to_nothing(void *unused)
{
    *nothing = 1;
    return unused;
}

int main(int count, char **arguments)
{
    CHECK(count == 3, "cores MIB MODE");
    uint32_t number = strtoul(arguments[1], NULL, 10) << 18;
    const char *mode = arguments[2];
    words = malloc((size_t)number * sizeof *words);
    CHECK(words, "there is no memory");
    for (uint32_t n = 0; n < number; n++)
        words[n] = word(n);
    printf("%lx\n", (unsigned long)words);
    fflush(stdout);
    if (!strcmp(mode, "abort"))
        abort();
    if (!strcmp(mode, "segv"))
        *nothing = 1;
    if (!strcmp(mode, "quit"))
        raise(SIGQUIT);
    if (!strcmp(mode, "thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, store_to_nothing, NULL);
        pthread_join(thread, NULL);
    }
    pause();
    return 0;
}
