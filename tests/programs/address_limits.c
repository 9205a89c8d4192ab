/* RLIMIT_DATA and RLIMIT_AS that a program sets for itself, after it has mapped something: they count what it
 * maps, and what it unmaps no more.
 *   address_limits data|as
 *   address_limits data-below|as-below    a limit below what is mapped: all goes on, in children, too */
#include "common.h"
#include <sys/resource.h>

#define LIMIT_MIB 200
/* What libc, the loader and the libraries may have, in MiB. */
#define OTHERS_MIB 30
#define MOST 1000

static char *maps[MOST];

static char *map(int prot, int flags)
{
    char *at = mmap(NULL, MIB, prot, flags, -1, 0);
    if (at != MAP_FAILED)
        return at;
    CHECK(errno == ENOMEM, "mmap: %s", strerror(errno));
    return NULL;
}

static int fill_up(int from)
{
    int count = from;
    while (count < MOST && (maps[count] = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS))) {
        memset(maps[count], count, MIB);
        count++;
    }
    return count;
}

/* Nothing more can be mapped, but all that is there can be used, also by a child. */
static void below(int resource)
{
    struct rlimit kept, least = {PAGE, 0};
    int fd = (int)SYS(open("/var/tmp", O_TMPFILE | O_RDWR, 0600));
    SYS(ftruncate(fd, 4 * MIB));
    uint8_t *file = map_file(fd, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    pattern_fill(1, 0, file, 4 * MIB);
    for (int i = 0; i < 48; i++)
        memset(maps[i] = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS), i, MIB);
    SYS(getrlimit(resource, &kept));
    least.rlim_max = kept.rlim_max;
    SYS(setrlimit(resource, &least));
    CHECK(!map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS), "more is mapped");
    for (int round = 0; round < 3; round++) {
        pid_t child = (pid_t)SYS(fork());
        for (int i = round; i < 48; i += 3)
            bytes_check((uint8_t *)maps[i], (uint8_t)i, MIB, child ? "parent" : "child");
        pattern_check(1, 0, file, 4 * MIB, child ? "parent" : "child");
        if (child == 0)
            _exit(42);
        int status;
        SYS(waitpid(child, &status, 0));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "the child's wait status is %#x", status);
    }
    CHECK(!map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS), "more is mapped after forks");
    SYS(setrlimit(resource, &kept));
    CHECK(map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS), "nothing is mapped without the limit");
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: address_limits data|as|data-below|as-below");
    bool data = !strncmp(argv[1], "data", 4);
    int resource = data ? RLIMIT_DATA : RLIMIT_AS;
    if (strchr(argv[1], '-')) {
        below(resource);
        puts("ok");
        return 0;
    }
    char *first = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    CHECK(first, "mmap");
    struct rlimit limit = {LIMIT_MIB * MIB, 2 * LIMIT_MIB * MIB}, is;
    SYS(setrlimit(resource, &limit));
    SYS(getrlimit(resource, &is));
    CHECK(is.rlim_cur == limit.rlim_cur && is.rlim_max == limit.rlim_max, "the limit is another");
    int count = fill_up(0);
    CHECK(count < LIMIT_MIB && count > LIMIT_MIB - OTHERS_MIB, "%d MiB of %d are mapped", count, LIMIT_MIB);
    CHECK(!map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS), "one more is mapped");
    /* What cannot be stored to is no data. */
    char *more = map(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
    CHECK(!more == !data, "a mapping that is only read is %smapped", more ? "" : "not ");
    if (more)
        SYS(munmap(more, MIB));
    for (int i = 1; i <= 10; i++)
        SYS(munmap(maps[count - i], MIB));
    CHECK(fill_up(count - 10) == count, "what was unmapped still counts");
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < MIB; at += PAGE)
            CHECK(maps[i][at] == (char)i, "mapping %d has changed", i);
    /* A higher limit lets more be mapped. */
    limit.rlim_cur += 50 * MIB;
    SYS(setrlimit(resource, &limit));
    CHECK(fill_up(count) == count + 50, "a higher limit lets others than 50 MiB be mapped");
    puts("ok");
    return 0;
}
