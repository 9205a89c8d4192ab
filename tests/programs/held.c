/* Has a file open where a look at the process's main thread does not show it, until it is killed.
 *   held FILE HOW       prints "ready" once it has FILE open, by a second thread
 *     table     in a file table of that thread's own
 *     ended     in the table of all, after the main thread has ended */
#include "common.h"
#include <pthread.h>
#include <sched.h>

static const char *path;
static bool own_table;
static pthread_t first;

static void *hold(void *unused)
{
    (void)unused;
    if (own_table)
        SYS(unshare(CLONE_FILES));
    else
        CHECK(pthread_join(first, NULL) == 0, "pthread_join");
    SYS(open(path, O_RDWR | O_CLOEXEC));
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: held FILE HOW");
    path = argv[1];
    own_table = !strcmp(argv[2], "table");
    first = pthread_self();
    pthread_t second;
    CHECK(pthread_create(&second, NULL, hold, NULL) == 0, "pthread_create");
    if (!own_table)
        pthread_exit(NULL);
    pthread_join(second, NULL);
    return 1;
}
