/* Ways in which a program treats its standard error, and programs that cannot be managed.
 *
 * said MODE [ARGUMENT]: prints one line after it has used some private memory, and then
 *   end: ends;
 *   limits: prints its limits on addresses and on data, and ends;
 *   close: closes descriptor 2 and ends by _exit;
 *   exit: has an exit handler close it by fclose, as GNU programs do, and ends by exit;
 *   all: closes descriptors 0, 1 and 2, and ends by _exit;
 *   stays: leaves a child that closes 1 and 2 and lives on for ARGUMENT seconds;
 *   daemon: the same, but it puts /dev/null there;
 *   replaced: puts the file ARGUMENT on descriptor 2, and ends;
 *   exec, spawn: the program ARGUMENT follows, or is run as a child;
 *   bare: execs ARGUMENT without an environment. */
#include "common.h"
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;

static void use_memory(void)
{
    size_t bytes = 8 << 20;
    char *memory = malloc(bytes);
    CHECK(memory, "it failed");
    memset(memory, 1, bytes);
    printf("used %d\n", memory[bytes / 2]);
    fflush(stdout);
}

static void close_stderr(void)
{
    fclose(stdout);
    fclose(stderr);
}

static void live_on(const char *seconds, int nothing)
{
    pid_t child = fork();
    CHECK(child >= 0, "it failed");
    if (child > 0)
        return;
    for (int fd = 0; fd < 3; fd++) {
        if (nothing)
            CHECK(dup2(nothing, fd) == fd, "it failed");
        else
            close(fd);
    }
    sleep(atoi(seconds));
    _exit(0);
}

int main(int count, char **arguments)
{
    CHECK(count > 1, "it failed");
    const char *mode = arguments[1], *argument = count > 2 ? arguments[2] : "";
    char *const program[] = {(char *)argument, NULL}, *const nothing[] = {NULL};
    if (!strcmp(mode, "exit"))
        atexit(close_stderr);
    use_memory();
    if (!strcmp(mode, "limits")) {
        for (int i = 0; i < 2; i++) {
            struct rlimit limit;
            SYS(getrlimit(i ? RLIMIT_DATA : RLIMIT_AS, &limit));
            printf("%lx %lx\n", (long)limit.rlim_cur, (long)limit.rlim_max);
        }
    }
    if (!strcmp(mode, "close")) {
        close(2);
        _exit(0);
    }
    if (!strcmp(mode, "all")) {
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        _exit(0);
    }
    if (!strcmp(mode, "stays"))
        live_on(argument, 0);
    if (!strcmp(mode, "daemon"))
        live_on(argument, open("/dev/null", O_RDWR));
    if (!strcmp(mode, "replaced")) {
        int fd = open(argument, O_WRONLY | O_CREAT, 0600);
        CHECK(fd >= 0 && dup2(fd, 2) == 2, "it failed");
    }
    if (!strcmp(mode, "exec"))
        execv(argument, program);
    if (!strcmp(mode, "bare"))
        execve(argument, program, nothing);
    if (!strcmp(mode, "spawn")) {
        pid_t child;
        int status;
        CHECK(posix_spawn(&child, argument, NULL, NULL, program, environ) == 0, "it failed");
        CHECK(waitpid(child, &status, 0) == child && status == 0, "it failed");
    }
    return 0;
}
