/* What a program sees of a failing device. The test decides what fails; this program says what it saw.
 *   inject FILE SEED pages        loads from every page of a read-only mapping; prints the ranges that raise
 *                                 SIGBUS
 *   inject FILE SEED msync        stores everywhere, prints what msync says, three times
 *   inject FILE SEED close        stores, closes descriptors until the background's write-back was tried,
 *                                 prints what the last close says
 *   inject FILE SEED lose         stores and returns */
#include "common.h"

static uint8_t *base;
static size_t len;
static uint64_t seed;
static int fd;

static void check_page(size_t at)
{
    size_t n = len - at < PAGE ? len - at : PAGE;
    pattern_check(seed, at, base + at, n, "a page that can be read");
}

static void pages(void)
{
    size_t bad_from = 0;
    bool bad = false;
    base = map_file(fd, len, PROT_READ, MAP_SHARED, 0);
    for (size_t at = 0; at < len; at += PAGE) {
        struct outcome seen = probe_load(base + at + 99, NULL);
        if (seen.sig == 0) {
            check_page(at);
        } else {
            outcome_check(seen, SIGBUS, BUS_ADRERR, base + at + 99, "a load", __LINE__);
            /* It does not get better by itself, and a system call says EFAULT. */
            LOAD_RAISES(base + at + 1, SIGBUS, BUS_ADRERR);
            int null = (int)SYS(open("/dev/null", O_WRONLY)), pipes[2];
            SYS(pipe(pipes));
            SYS_FAILS(write(pipes[1], base + at, 10), EFAULT);
            SYS(close(null));
            SYS(close(pipes[0]));
            SYS(close(pipes[1]));
        }
        if ((seen.sig != 0) != bad) {
            if (bad)
                printf("SIGBUS from %zu to %zu\n", bad_from, at);
            bad = !bad;
            bad_from = at;
        }
    }
    if (bad)
        printf("SIGBUS from %zu to %zu\n", bad_from, len);
    printf("the rest is right\n");
}

static void stores(void)
{
    base = map_file(fd, len, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
    pattern_fill(seed, 0, base, len);
}

static const char *said(int result)
{
    return result == 0 ? "success" : strerrorname_np(errno);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: inject FILE SEED MODE");
    const char *mode = argv[3];
    seed = strtoull(argv[2], NULL, 0);
    fd = (int)SYS(open(argv[1], O_RDWR));
    len = file_size(fd);
    probe_install();
    if (!strcmp(mode, "pages")) {
        pages();
    } else if (!strcmp(mode, "msync")) {
        stores();
        for (int i = 0; i < 3; i++) {
            printf("msync: %s\n", said(msync(base, len, MS_SYNC)));
            pattern_check(seed, 0, base, len, "stores whose write-back has failed");
        }
    } else if (!strcmp(mode, "close")) {
        stores();
        int closed = 0; /* a close tries nothing itself: it only says what was met */
        for (double end = now_seconds() + 60; now_seconds() < end && closed == 0;) {
            sleep_ms(50);
            closed = close((int)SYS(dup(fd)));
        }
        printf("close: %s\n", said(closed));
        pattern_check(seed, 0, base, len, "stores whose write-back has failed");
    } else if (!strcmp(mode, "lose")) {
        stores();
    } else {
        FAIL("no mode %s", mode);
    }
    return 0;
}
