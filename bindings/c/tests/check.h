/*
 * What the test programs have in common. Each is PROGRAM DIRECTORY [TEST]; the directory is on a disk. A
 * program defines _GNU_SOURCE before it includes this.
 */
#ifndef CHECK_H
#define CHECK_H

#include <elbowroom.h>
#include <umap/umap.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096 };

/* AddressSanitizer keeps memory that was freed. */
#ifdef __SANITIZE_ADDRESS__
enum { KEEPS_FREED = 1 };
#else
enum { KEEPS_FREED = 0 };
#endif

static const char *directory;
static char path[4096]; /* Of the file that a test makes. */

/* Ends the test unless the condition holds. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, er_error());       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define GOOD(call) CHECK((call) == 0)
/* The call fails with this number, and the text has these words. */
#define BAD(call, number, words)                                                                   \
    do {                                                                                           \
        CHECK((call) == (number));                                                                 \
        CHECK(strstr(er_error(), words) != NULL);                                                  \
    } while (0)

static inline er_manager *start_with(uint64_t memory, uint64_t swap, const char *inject)
{
    er_config config;
    er_config_init(&config, sizeof config);
    config.memory = memory;
    config.swap = swap;
    config.swap_dir = directory;
    config.inject = inject;
    er_manager *manager = NULL;
    GOOD(er_start(&config, &manager));
    CHECK(manager != NULL);
    return manager;
}

static inline er_manager *start(void)
{
    return start_with(32 * MIB, 128 * MIB, NULL);
}

/* A file of `pages` pages, each of which begins with its number. */
static inline void make_file(size_t pages)
{
    snprintf(path, sizeof path, "%s/elbowroom-c-%d", directory, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    static uint64_t page[PAGE / 8];
    for (size_t at = 0; at < pages; at++) {
        page[0] = at;
        CHECK(write(fd, page, PAGE) == PAGE);
    }
    CHECK(fsync(fd) == 0 && close(fd) == 0);
}

static inline er_map_options options_of(er_file *file, size_t length, uint32_t access)
{
    er_map_options options;
    er_map_options_init(&options, sizeof options);
    options.file = file;
    options.length = length;
    options.access = access;
    return options;
}

static inline uint64_t *map(er_manager *manager, er_file *file, size_t length, uint32_t access)
{
    er_map_options options = options_of(file, length, access);
    void *address = NULL;
    GOOD(er_map(manager, &options, &address));
    CHECK(address != NULL);
    return address;
}

static inline er_file *open_file(er_manager *manager, uint32_t flags)
{
    er_file *file = NULL;
    GOOD(er_open(manager, path, flags, &file));
    return file;
}

struct test {
    const char *name;
    void (*run)(void);
};

/* A child that ends in any case: an alarm is not inherited. */
static inline pid_t fork_child(void)
{
    pid_t child = fork();
    if (child == 0)
        alarm(50);
    return child;
}

/* Runs the tests, each in a process of its own, or the one that is named in this process. */
static inline int run_tests(int argc, char **argv, const struct test *tests, size_t count)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s DIRECTORY [TEST]\n", argv[0]);
        return 2;
    }
    directory = argv[1];
    int failed = 0, ran = 0;
    for (size_t at = 0; at < count; at++) {
        if (argc > 2 && strcmp(argv[2], tests[at].name) != 0)
            continue;
        ran++;
        if (argc > 2) {
            tests[at].run();
        } else {
            /* Each in a process of its own. */
            pid_t child = fork();
            if (child == 0) {
                alarm(60);
                tests[at].run();
                _exit(0);
            }
            int status = 0;
            waitpid(child, &status, 0);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
                fprintf(stderr, "%s: status %#x\n", tests[at].name, (unsigned)status);
                failed++;
            }
            snprintf(path, sizeof path, "%s/elbowroom-c-%d", directory, (int)child);
        }
        unlink(path);
    }
    printf("%d tests, %d failed\n", ran, failed);
    return ran == 0 || failed > 0;
}

#endif
