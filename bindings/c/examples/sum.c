/* Adds up all bytes of a file, however large it is, with 64 MiB of memory: sum FILE */
#include <elbowroom.h>
#include <stdio.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, er_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }

    er_config config;
    er_config_init(&config, sizeof config);
    config.memory = 64 << 20;
    er_manager *manager;
    if (er_start(&config, &manager) != 0)
        return failed("start");

    er_file *file;
    if (er_open(manager, argv[1], ER_READ | ER_TRUST, &file) != 0)
        return failed("open");
    uint64_t size;
    if (er_file_size(file, &size) != 0)
        return failed("size");

    er_map_options options;
    er_map_options_init(&options, sizeof options);
    options.file = file;
    options.access = ER_READ;
    void *address;
    if (er_map(manager, &options, &address) != 0)
        return failed("map");

    const unsigned char *bytes = address;
    uint64_t sum = 0;
    for (uint64_t at = 0; at < size; at++)
        sum += bytes[at];

    er_stats stats;
    if (er_get_stats(manager, &stats, sizeof stats) != 0)
        return failed("stats");
    printf("sum %llu, %llu MiB, at most %llu MiB in memory\n", (unsigned long long)sum,
           (unsigned long long)(size >> 20), (unsigned long long)(stats.peak_bytes >> 20));

    if (er_unmap(manager, address) != 0)
        return failed("unmap");
    if (er_stop(manager) != 0)
        return failed("stop");
    return 0;
}
