/*
 * Sorts an array in place that is larger than the memory it may have, while another array has a budget of its
 * own, which the sort does not touch.
 */
#include <elbowroom.h>
#include <stdio.h>
#include <stdlib.h>

enum { MIB = 1 << 20 };

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, er_error());
    return 1;
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Sorts without memory of its own: qsort of glibc may copy the array. */
static void sort(uint64_t *from, size_t count)
{
    while (count > 32) {
        uint64_t pivot = from[count / 2];
        size_t low = 0, high = count - 1;
        for (;;) {
            while (from[low] < pivot)
                low++;
            while (from[high] > pivot)
                high--;
            if (low >= high)
                break;
            uint64_t kept = from[low];
            from[low++] = from[high];
            from[high--] = kept;
        }
        size_t left = high + 1;
        /* The smaller half first: so the stack stays small. */
        if (left < count - left) {
            sort(from, left);
            from += left;
            count -= left;
        } else {
            sort(from + left, count - left);
            count = left;
        }
    }
    qsort(from, count, sizeof *from, compare);
}

/* Makes a group with so much memory, and an array in it. */
static int array_of(er_manager *manager, uint64_t memory, size_t length, er_group **group, void **address)
{
    er_limits limits;
    er_limits_init(&limits, sizeof limits);
    limits.max = memory;
    limits.swap_max = 4 * length;
    if (er_group_create(manager, NULL, &limits, group) != 0)
        return failed("group");
    er_map_options options;
    er_map_options_init(&options, sizeof options);
    options.length = length;
    options.group = *group;
    if (er_map(manager, &options, address) != 0)
        return failed("map");
    return 0;
}

int main(int argc, char **argv)
{
    er_config config;
    er_config_init(&config, sizeof config);
    config.memory = 32 * MIB;
    config.swap = 256 * MIB;
    /* The directory of the swap file. */
    if (argc > 1)
        config.swap_dir = argv[1];
    er_manager *manager;
    if (er_start(&config, &manager) != 0)
        return failed("start");

    size_t large = 32 * MIB, small = 4 * MIB;
    er_group *sorts, *keeps;
    void *array, *table;
    if (array_of(manager, 8 * MIB, large, &sorts, &array) != 0)
        return 1;
    if (array_of(manager, 6 * MIB, small, &keeps, &table) != 0)
        return 1;

    uint64_t *kept = table, *numbers = array, state = 88172645463325252u, sum = 0;
    size_t count = large / sizeof *numbers;
    for (size_t at = 0; at < small / sizeof *kept; at++)
        kept[at] = at;
    for (size_t at = 0; at < count; at++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        numbers[at] = state;
        sum += state;
    }
    sort(numbers, count);
    for (size_t at = 0; at < count; at++) {
        sum -= numbers[at];
        if (at > 0 && numbers[at - 1] > numbers[at]) {
            fprintf(stderr, "not sorted at %zu\n", at);
            return 1;
        }
    }
    if (sum != 0) {
        fprintf(stderr, "numbers were lost\n");
        return 1;
    }

    er_group_stats first, second;
    if (er_group_get_stats(sorts, &first, sizeof first) != 0 ||
        er_group_get_stats(keeps, &second, sizeof second) != 0)
        return failed("stats");
    printf("sorted %zu MiB with at most %llu MiB in memory; beside it %llu MiB stayed in memory\n",
           large / MIB, (unsigned long long)(first.peak_bytes / MIB),
           (unsigned long long)(second.usage_bytes / MIB));
    if (first.peak_bytes > 8 * MIB || second.swap_bytes != 0) {
        fprintf(stderr, "a group had more than its own\n");
        return 1;
    }
    if (er_unmap(manager, array) || er_unmap(manager, table) || er_stop(manager))
        return failed("end");
    return 0;
}
