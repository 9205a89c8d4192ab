/* Makes and checks files, by plain reads and writes: the tests' own view of what is on the file.
 *   pattern create FILE BYTES SEED     a file of the pattern
 *   pattern many PREFIX COUNT BYTES    COUNT files PREFIX0, PREFIX1, ... whose seeds are 0, 1, ...
 *   pattern check FILE BYTES SEED      fails unless the file is exactly that
 *   pattern sum FILE                   prints the size and a checksum */
#include "common.h"

static void check(const char *path, uint64_t bytes, uint64_t seed)
{
    int fd = (int)SYS(open(path, O_RDONLY));
    CHECK(file_size(fd) == bytes, "%s has %llu bytes, not %llu", path, (unsigned long long)file_size(fd),
          (unsigned long long)bytes);
    uint8_t *buffer = malloc(MIB);
    for (uint64_t at = 0; at < bytes; at += MIB) {
        size_t n = bytes - at < MIB ? bytes - at : MIB;
        pread_all(fd, buffer, n, at);
        pattern_check(seed, at, buffer, n, path);
    }
    free(buffer);
}

static void sum(const char *path)
{
    int fd = (int)SYS(open(path, O_RDONLY));
    uint8_t *buffer = malloc(MIB);
    uint64_t total = 0, at = 0;
    for (ssize_t n; (n = SYS(read(fd, buffer, MIB))) > 0;)
        for (ssize_t i = 0; i < n; i++, at++)
            total = (total ^ buffer[i]) * 0x100000001b3u;
    printf("%llu bytes, sum %016llx\n", (unsigned long long)at, (unsigned long long)total);
    free(buffer);
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "create") && argc == 5) {
        int fd = make_file(argv[2], "", strtoull(argv[4], NULL, 0), strtoull(argv[3], NULL, 0));
        SYS(fsync(fd));
    } else if (!strcmp(verb, "many") && argc == 5) {
        for (uint64_t i = 0; i < strtoull(argv[3], NULL, 0); i++) {
            char suffix[32];
            snprintf(suffix, sizeof suffix, "%llu", (unsigned long long)i);
            SYS(close(make_file(argv[2], suffix, i, strtoull(argv[4], NULL, 0))));
        }
        sync();
    } else if (!strcmp(verb, "check") && argc == 5) {
        check(argv[2], strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
    } else if (!strcmp(verb, "sum") && argc == 3) {
        sum(argv[2]);
    } else {
        FAIL("usage: see the source");
    }
    return 0;
}
