/*
 * A program as it is written for umap: fills a file with numbers in descending order, turns the order round
 * in place, and checks it. umap_style FILE [MiB]; UMAP_BUFSIZE is how many pages of UMAP_PAGESIZE bytes it
 * may have in memory.
 */
#define _DEFAULT_SOURCE
#include <umap/umap.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE [MiB]\n", argv[0]);
        return 2;
    }
    uint64_t page = umapcfg_get_umap_page_size();
    uint64_t bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 64) << 20;
    bytes = bytes / page * page;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return failed(argv[1]);

    uint64_t *numbers = umap(NULL, bytes, PROT_READ | PROT_WRITE, UMAP_PRIVATE, fd, 0);
    if (numbers == UMAP_FAILED)
        return failed("umap");
    uint64_t count = bytes / sizeof *numbers;
    for (uint64_t at = 0; at < count; at++)
        numbers[at] = count - at;
    for (uint64_t left = 0, right = count - 1; left < right; left++, right--) {
        uint64_t kept = numbers[left];
        numbers[left] = numbers[right];
        numbers[right] = kept;
    }
    if (umap_flush() != 0)
        return failed("umap_flush");

    /* The file has what was stored, and so has the memory. */
    struct umap_prefetch_item items[2] = {{numbers}, {(char *)numbers + bytes - page}};
    umap_prefetch(2, items);
    umap_fetch_and_pin((char *)numbers, page);
    for (uint64_t at = 0; at < count; at += 101) {
        uint64_t there;
        if (pread(fd, &there, sizeof there, (off_t)(at * sizeof there)) != sizeof there)
            return failed("pread");
        if (there != at + 1 || numbers[at] != at + 1) {
            fprintf(stderr, "number %llu is wrong\n", (unsigned long long)at);
            return 1;
        }
    }
    if (uunmap(numbers, bytes) != 0)
        return failed("uunmap");
    close(fd);
    printf("%llu numbers in %llu pages, %llu of which may be in memory\n", (unsigned long long)count,
           (unsigned long long)(bytes / page), (unsigned long long)umapcfg_get_max_pages_in_buffer());
    return 0;
}
