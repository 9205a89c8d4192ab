/* Children of a program with mapped files.
 *   forks FILE SEED MODE     FILE is the pattern of SEED, at least 4 MiB; it is not changed in the end
 *     exec      fork + exec, vfork + exec, posix_spawn, system, popen, also while threads store
 *     remap     a forked child maps the file itself
 *     unmap     a forked child unmaps what it has inherited and exits
 *     touch     a forked child reads the memory it has inherited, of a mapping that only reads: its status is
 *               printed
 *     share     parent and child see each other's stores in what both have inherited
 *     child     what the started programs run: checks the file through a mapping of its own */
#include "common.h"
#include <spawn.h>

extern char **environ;

static const char *self, *path, *seed_text;
static uint64_t seed;
static int fd;
static uint8_t *base;
static size_t len;
static _Atomic bool stop;

static int child_status(pid_t child)
{
    int status;
    SYS(waitpid(child, &status, 0));
    return status;
}

static void succeeded(int status, const char *what)
{
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "%s: the child's wait status is %#x", what, status);
    pattern_check(seed, 0, base, len, what);
}

static char *const *child_arguments(void)
{
    static char *arguments[5];
    arguments[0] = (char *)self;
    arguments[1] = (char *)path;
    arguments[2] = (char *)seed_text;
    arguments[3] = (char *)"child";
    return arguments;
}

/* Stores what is there already, so that pages are dirty and in use while the process forks. */
static void *storer(void *argument)
{
    struct rng rng = rng_new(seed, (uintptr_t)argument);
    while (!stop) {
        size_t at = rng_below(&rng, len);
        ((volatile uint8_t *)base)[at] = pattern_byte(seed, at);
        if (rng_below(&rng, 256) == 0)
            sched_yield();
    }
    return NULL;
}

static void exec_each_way(void)
{
    /* A kernel that copies arguments from nowhere says so, and starts nothing. */
    char **volatile nowhere = (char **)16;
    SYS_FAILS(execve(self, child_arguments(), nowhere), EFAULT);
    SYS_FAILS(execve(self, nowhere, environ), EFAULT);
    SYS_FAILS(execve((char *)nowhere, child_arguments(), environ), EFAULT);
    for (int i = 0; i < 3; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            execv(self, child_arguments());
            _exit(1);
        }
        succeeded(child_status(child), "fork + exec");
    }
    pid_t child = vfork();
    if (child == 0) {
        execv(self, child_arguments());
        _exit(1);
    }
    succeeded(child_status(child), "vfork + exec");
    int error = posix_spawn(&child, self, NULL, NULL, child_arguments(), environ);
    CHECK(error == 0, "posix_spawn: %s", strerror(error));
    succeeded(child_status(child), "posix_spawn");
    char command[9000];
    snprintf(command, sizeof command, "'%s' '%s' %s child", self, path, seed_text);
    succeeded(system(command), "system");
    FILE *stream = popen(command, "r");
    CHECK(stream != NULL, "popen: %s", strerror(errno));
    char line[100];
    CHECK(fgets(line, sizeof line, stream) && !strcmp(line, "the child is right\n"), "popen gave \"%s\"",
          line);
    succeeded(pclose(stream), "popen");
}

static void while_threads_store(void)
{
    pthread_t ids[3];
    for (uintptr_t i = 0; i < 3; i++)
        SPAWN(&ids[i], storer, (void *)i);
    exec_each_way();
    stop = true;
    for (int i = 0; i < 3; i++)
        pthread_join(ids[i], NULL);
    pattern_check(seed, 0, base, len, "after forks under stores");
}

static int child_main(void)
{
    uint8_t *own = map_file(fd, len, PROT_READ, MAP_SHARED, 0);
    pattern_check(seed, 0, own, len, "the child's own mapping");
    SYS(munmap(own, len));
    printf("the child is right\n");
    fflush(stdout);
    return 42;
}

/* Each stores where the other looks, in turns by pipes. */
static void share(void)
{
    int to_child[2], to_parent[2];
    char turn = 0;
    SYS(pipe(to_child));
    SYS(pipe(to_parent));
    fflush(stdout);
    pid_t child = (pid_t)SYS(fork());
    volatile uint8_t *byte = base + 5 * PAGE;
    uint8_t was = *byte;
    for (unsigned i = 0; i < 100; i++) {
        uint8_t mine = (uint8_t)(2 * i + 1), theirs = (uint8_t)(2 * i + 2);
        if (child) {
            *byte = mine;
            SYS(write(to_child[1], &turn, 1));
            SYS(read(to_parent[0], &turn, 1));
            CHECK(*byte == theirs, "turn %u: the child's store is not seen", i);
        } else {
            SYS(read(to_child[0], &turn, 1));
            if (*byte != mine)
                _exit(97);
            *byte = theirs;
            SYS(write(to_parent[1], &turn, 1));
        }
    }
    if (!child)
        _exit(42);
    *byte = was;
    succeeded(child_status(child), "share");
}

static void forked(const char *mode)
{
    fflush(stdout);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        if (!strcmp(mode, "remap"))
            _exit(child_main());
        if (!strcmp(mode, "unmap"))
            _exit(munmap(base, len) == 0 ? 42 : 1);
        for (size_t at = 0; at < len; at += PAGE)
            if (base[at] != pattern_byte(seed, at))
                _exit(97);
        _exit(42);
    }
    int status = child_status(child);
    if (!strcmp(mode, "touch")) {
        printf("child: exit %d, signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
               WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        pattern_check(seed, 0, base, len, "the parent after the child");
    } else {
        succeeded(status, mode);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: forks FILE SEED MODE");
    self = argv[0];
    path = argv[1];
    seed_text = argv[2];
    seed = strtoull(seed_text, NULL, 0);
    bool reads = !strcmp(argv[3], "touch");
    fd = (int)SYS(open(path, reads ? O_RDONLY : O_RDWR));
    len = file_size(fd);
    if (!strcmp(argv[3], "child"))
        return child_main();
    base = map_file(fd, len, reads ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    pattern_check(seed, 0, base, len, "before");
    if (!strcmp(argv[3], "share")) {
        share();
        return 0;
    }
    for (size_t at = 0; at < len && !reads; at += 3 * PAGE)
        ((volatile uint8_t *)base)[at] = pattern_byte(seed, at);
    if (strcmp(argv[3], "exec")) {
        forked(argv[3]);
        return 0;
    }
    PART(exec_each_way);
    PART(while_threads_store);
    return 0;
}
