/* stdio streams of files that are mapped.
 *   stdio FILE             FILE is made
 *   stdio FILE exit        writes to FILE what reaches it at exit only
 *   stdio FILE read SEED   only reads FILE, the pattern of SEED, through a stream and a mapping of its
 *                          descriptor */
#include "common.h"

#define LEN (2 * MIB)
#define AT (MIB + 100)

static const char *path;

/* A shared mapping of the file, fresh and full of 'a'. */
static uint8_t *fresh(int *fd)
{
    *fd = (int)SYS(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    uint8_t *bytes = malloc(LEN);
    CHECK(bytes != NULL, "no memory");
    memset(bytes, 'a', LEN);
    pwrite_all(*fd, bytes, LEN, 0);
    free(bytes);
    return map_file(*fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
}

static void done(int fd, uint8_t *map)
{
    SYS(munmap(map, LEN));
    SYS(close(fd));
}

static FILE *opened(const char *mode)
{
    FILE *file = fopen(path, mode);
    CHECK(file != NULL, "fopen %s: %s", mode, strerror(errno));
    return file;
}

/* "new" is at AT in the file and in the mapping, and stores beside it stay. */
static void arrived(int fd, uint8_t *map, const char *what)
{
    char bytes[8] = {0};
    CHECK(memcmp(map + AT, "new", 3) == 0, "%s: the mapping has %.8s", what, map + AT);
    map[AT + 5] = 'Z';
    SYS(msync(map, LEN, MS_SYNC));
    pread_all(fd, bytes, 7, AT - 1);
    CHECK(memcmp(bytes, "anewaaZ", 7) == 0, "%s: the file has %.8s", what, bytes);
}

static void push_flush_all(FILE *file) { CHECK(fflush(NULL) == 0, "fflush"); (void)file; }
static void push_unlocked(FILE *file) { CHECK(fflush_unlocked(file) == 0, "fflush_unlocked"); }
static void push_seek(FILE *file) { CHECK(fseek(file, 0, SEEK_SET) == 0, "fseek"); }
static void push_rewind(FILE *file) { rewind(file); }
static void push_unbuffered(FILE *file) { CHECK(fflush(file) == 0, "fflush"); }

/* What each way of pushing a buffer out writes is seen. */
static void writes(void)
{
    struct { const char *name; void (*push)(FILE *); } ways[] = {
        {"fflush(NULL)", push_flush_all}, {"fflush_unlocked", push_unlocked}, {"fseek", push_seek},
        {"rewind", push_rewind}, {"fflush", push_unbuffered},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int fd;
        uint8_t *map = fresh(&fd);
        (void)*(volatile uint8_t *)(map + AT);
        map[AT + PAGE] = 'S';
        FILE *file = opened("r+");
        CHECK(fseek(file, AT, SEEK_SET) == 0, "fseek");
        CHECK(fputs("new", file) >= 0, "fputs");
        ways[i].push(file);
        arrived(fd, map, ways[i].name);
        CHECK(fclose(file) == 0, "fclose");
        CHECK(map[AT + PAGE] == 'S', "an earlier store is lost");
        done(fd, map);
    }
}

/* Single characters, formatted output, a full buffer, and what fclose writes. */
static void writes_without_a_flush(void)
{
    int fd;
    uint8_t *map = fresh(&fd);
    map[0] = 'S';
    FILE *file = opened("r+");
    for (size_t i = 0; i < LEN; i++)
        CHECK((i % 3 == 0 ? putc('b', file) : i % 3 == 1 ? fputc('b', file) : fprintf(file, "b")) >= 0,
              "putc");
    CHECK(fclose(file) == 0, "fclose");
    bytes_check(map, 'b', LEN, "characters");
    done(fd, map);

    map = fresh(&fd);
    map[0] = 'S';
    file = fdopen(dup(fd), "r+");
    CHECK(file != NULL && setvbuf(file, NULL, _IONBF, 0) == 0, "fdopen");
    CHECK(fseek(file, AT, SEEK_SET) == 0 && fprintf(file, "n%cw", 'e') == 3, "fprintf");
    arrived(fd, map, "an unbuffered stream");
    CHECK(freopen(NULL, "r+", file) == file && fseek(file, 5, SEEK_SET) == 0 && fputs("xyz", file) >= 0,
          "freopen");
    CHECK(fclose(file) == 0, "fclose");
    CHECK(memcmp(map, "Saaaaxyza", 9) == 0, "freopen: %.9s", map);
    done(fd, map);
}

/* dprintf writes without a stream. */
static void writes_of_a_descriptor(void)
{
    int fd;
    uint8_t *map = fresh(&fd);
    map[0] = 'S';
    (void)*(volatile uint8_t *)(map + AT);
    SYS(lseek(fd, AT, SEEK_SET));
    CHECK(dprintf(fd, "%c%s%.0f%d", 'n', "ew", 0.0, 1) == 5, "dprintf");
    SYS(lseek(fd, AT + 3, SEEK_SET));
    CHECK(dprintf(fd, "aa") == 2, "dprintf");
    arrived(fd, map, "dprintf");
    CHECK(dprintf(2, "%g%g%g%g%g%g%g%g%g %d %d %d %d %d %d%s", 1., 2., 3., 4., 5., 6., 7., 8., 9., 1, 2, 3, 4,
                  5, 6, "\n") == 22,
          "dprintf of many arguments");
    done(fd, map);
}

/* What the mapping has stored is seen by every way of reading. */
static void reads(void)
{
    int fd;
    uint8_t *map = fresh(&fd);
    map[0] = 'S';
    FILE *file = opened("r");
    CHECK(setvbuf(file, NULL, _IONBF, 0) == 0, "setvbuf");
    char text[16], *line = NULL;
    size_t room = 0;
    for (int i = 0; i < 20; i++) {
        char now = (char)('A' + i);
        memset(map, now, 5);
        map[5] = '\n';
        /* A stream may keep what it has read, unless it is flushed. */
        CHECK(fflush(file) == 0, "fflush");
        rewind(file);
        if (i % 5 == 0)
            CHECK(fread(text, 1, 6, file) == 6, "fread");
        else if (i % 5 == 1)
            CHECK(fgets(text, 8, file) == text, "fgets");
        else if (i % 5 == 2)
            CHECK((text[0] = (char)getc(file)) != EOF, "getc");
        else if (i % 5 == 3)
            CHECK(getline(&line, &room, file) == 6 && (text[0] = line[0]), "getline");
        else
            CHECK(fscanf(file, "%8s", text) == 1, "fscanf");
        CHECK(text[0] == now, "reading %d gave %c, not %c", i % 5, text[0], now);
    }
    free(line);
    CHECK(fclose(file) == 0, "fclose");
    CHECK(map[0] == 'T', "the mapping has %c", map[0]);
    done(fd, map);
}

/* A mapping that is made while a stream is there sees it, too. */
static void streams_before_mappings(void)
{
    int fd;
    done(fd, fresh(&fd));
    FILE *file = opened("r+");
    uint8_t *map = map_file(fileno(file), LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    (void)*(volatile uint8_t *)(map + AT);
    map[AT + 1 + PAGE] = 'S';
    CHECK(fseek(file, AT, SEEK_SET) == 0 && fputs("new", file) >= 0 && fflush(NULL) == 0, "fputs");
    arrived(fileno(file), map, "a stream before the mapping");
    SYS(munmap(map, LEN));
    CHECK(fclose(file) == 0, "fclose");
    /* Mapped when the stream is closed: all of it is there. */
    fd = (int)SYS(open(path, O_RDWR | O_CLOEXEC));
    map = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    CHECK(memcmp(map + AT, "newaaZ", 6) == 0, "mapped later: %.6s", map + AT);
    done(fd, map);
}

/* Stores, munmap, close; then the file is made anew by a stream: the old stores are not seen again. */
static void made_anew(void)
{
    for (int i = 0; i < 4; i++) {
        int fd;
        uint8_t *map = fresh(&fd);
        memset(map, 'o', LEN);
        done(fd, map);
        FILE *file = i % 2 ? freopen(path, "w", opened("r")) : opened("w");
        CHECK(file != NULL, "freopen");
        for (size_t at = 0; at < LEN / 2; at += 8)
            CHECK(fputs("12345678", file) >= 0, "fputs");
        CHECK(fclose(file) == 0, "fclose");
        if (i >= 2)
            sync();
        fd = (int)SYS(open(path, O_RDONLY | O_CLOEXEC));
        CHECK(file_size(fd) == LEN / 2, "its size is %llu", (unsigned long long)file_size(fd));
        map = map_file(fd, LEN / 2, PROT_READ, MAP_SHARED, 0);
        for (size_t at = 0; at < LEN / 2; at += 8)
            CHECK(memcmp(map + at, "12345678", 8) == 0, "byte %#zx is old: %.8s", at, map + at);
        SYS(munmap(map, LEN / 2));
        SYS(close(fd));
    }
}

/* Standard output becomes the file, by dup2, and by freopen. */
static void standard_streams(void)
{
    int kept = (int)SYS(dup(1)), fd;
    uint8_t *map = fresh(&fd);
    (void)*(volatile uint8_t *)(map + AT);
    map[AT + PAGE] = 'S';
    fflush(stdout);
    SYS(dup2(fd, 1));
    SYS(lseek(fd, AT, SEEK_SET));
    printf("ne%s", "w");
    CHECK(fflush(NULL) == 0, "fflush");
    SYS(dup2(kept, 1));
    arrived(fd, map, "standard output by dup2");
    done(fd, map);

    map = fresh(&fd);
    (void)*(volatile uint8_t *)(map + AT);
    map[AT + PAGE] = 'S';
    CHECK(freopen(path, "r+", stdout) == stdout, "freopen");
    CHECK(fseek(stdout, AT, SEEK_SET) == 0 && puts("new") >= 0 && fseek(stdout, 0, SEEK_SET) == 0, "puts");
    map[AT + 3] = 'a';
    arrived(fd, map, "standard output by freopen");
    done(fd, map);
    fflush(stdout);
    SYS(dup2(kept, 1));
    SYS(close(kept));
}

/* A stream that is left to exit writes its buffer then. The parent looks. */
static void left_to_exit(const char *self)
{
    int fd;
    done(fd, fresh(&fd));
    fflush(stdout);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        execl(self, self, path, "exit", NULL);
        _exit(97);
    }
    int status;
    SYS(waitpid(child, &status, 0));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", status);
    fd = (int)SYS(open(path, O_RDONLY | O_CLOEXEC));
    char bytes[8] = {0};
    pread_all(fd, bytes, 7, AT);
    CHECK(memcmp(bytes, "newaaSa", 7) == 0, "the file has %.7s", bytes);
    SYS(close(fd));
}

static int leave_to_exit(void)
{
    int fd = (int)SYS(open(path, O_RDWR));
    uint8_t *map = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    FILE *file = opened("r+");
    CHECK(fseek(file, AT, SEEK_SET) == 0 && fputs("new", file) >= 0, "fputs");
    map[AT + 5] = 'S';
    return 0;
}

/* As programs do that load a large file: a mapping of what a stream has opened. */
static int only_read(uint64_t seed)
{
    FILE *file = opened("rb");
    size_t len = (size_t)file_size(fileno(file));
    uint8_t *map = map_file(fileno(file), len, PROT_READ, MAP_SHARED, 0), bytes[1000];
    pattern_check(seed, 0, map, len, "the mapping");
    for (size_t at = 0; at + sizeof bytes <= len; at += 100 * sizeof bytes) {
        CHECK(fseek(file, (long)at, SEEK_SET) == 0 && fread(bytes, sizeof bytes, 1, file) == 1, "fread");
        pattern_check(seed, at, bytes, sizeof bytes, "fread");
    }
    FILE *again = opened("r");
    CHECK(fread(bytes, 10, 1, again) == 1 && fclose(again) == 0, "another stream");
    pattern_check(seed, 0, map, len, "the mapping, again");
    CHECK(fclose(file) == 0, "fclose");
    SYS(munmap(map, len));
    return 0;
}

/* Threads that open, write, close and map one file: what a closed stream has written is in every mapping made
 * after. */
static atomic_int stop;

static void *mapper(void *argument)
{
    (void)argument;
    while (!atomic_load(&stop)) {
        int fd = (int)SYS(open(path, O_RDWR | O_CLOEXEC));
        uint8_t *map = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        CHECK(map[LEN - 1] == 'a', "the last byte is %c", map[LEN - 1]);
        done(fd, map);
    }
    return NULL;
}

static void races(void)
{
    int fd;
    uint8_t *map = fresh(&fd);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, mapper, NULL) == 0, "pthread_create");
    for (int i = 0; i < 200; i++) {
        char now[8];
        snprintf(now, sizeof now, "%06d", i);
        FILE *file = opened("r+");
        CHECK(fseek(file, AT, SEEK_SET) == 0 && fputs(now, file) >= 0 && fclose(file) == 0, "fputs");
        CHECK(memcmp(map + AT, now, 6) == 0, "the mapping has %.6s, not %s", map + AT, now);
        if (i % 10 == 9) {
            SYS(munmap(map, LEN));
            map = map_file(fd, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
        }
    }
    atomic_store(&stop, 1);
    CHECK(pthread_join(thread, NULL) == 0, "pthread_join");
    done(fd, map);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2, "usage: stdio FILE");
    path = argv[1];
    if (argc >= 3)
        return argc == 4 ? only_read(strtoull(argv[3], NULL, 10)) : leave_to_exit();
    PART(writes);
    PART(writes_without_a_flush);
    PART(writes_of_a_descriptor);
    PART(reads);
    PART(streams_before_mappings);
    PART(made_anew);
    PART(standard_streams);
    PART(left_to_exit, argv[0]);
    PART(races);
    return 0;
}
