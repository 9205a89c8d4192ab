/* Stores to more memory than there is room for, so that an access fails with SIGBUS in the end. Then it loads
 * pages that are out: by a load, by a system call and in a signal handler, at the same time. Each must fail,
 * within a bound, and succeed once there is room. Prints what became of each. Where there is room for all of
 * it, no access fails.
 *   full MIB */
#include "common.h"

#define WORD(page) ((volatile uint64_t *)(memory + (page) * PAGE))

static uint8_t *memory;
static size_t stored;
static __thread sigjmp_buf *volatile jump;

static void on_bus(int signal)
{
    (void)signal;
    if (!jump)
        _exit(97);
    siglongjmp(*jump, 1);
}

/* What nothing makes smaller, and begins with the page's number. */
static bool store(size_t page)
{
    sigjmp_buf here;
    bool done = false;
    if (!sigsetjmp(here, 1)) {
        jump = &here;
        uint64_t word = page * 0x9e3779b97f4a7c15u + 1;
        for (size_t i = 1; i < PAGE / 8; i++) {
            word ^= word << 13, word ^= word >> 7, word ^= word << 17;
            WORD(page)[i] = word;
        }
        WORD(page)[0] = page;
        done = true;
    }
    jump = NULL;
    return done;
}

/* Whether a load succeeded, and what was loaded is right. */
static bool load(size_t page)
{
    sigjmp_buf here;
    volatile bool done = false;
    if (!sigsetjmp(here, 1)) {
        jump = &here;
        CHECK(WORD(page)[0] == page, "page %zu has %llu", page, (unsigned long long)WORD(page)[0]);
        done = true;
    }
    jump = NULL;
    return done;
}

/* A page that is out, from `from` on. */
static size_t out(size_t from)
{
    for (size_t page = from; page < stored; page++) {
        unsigned char resident;
        SYS(mincore(memory + page * PAGE, PAGE, &resident));
        if (!(resident & 1))
            return page;
    }
    return from;
}

static size_t places[3];
static const char *ends[3];

static void *by_load(void *unused)
{
    (void)unused;
    ends[0] = load(places[0]) ? "there" : "SIGBUS";
    return NULL;
}

static void *by_call(void *unused)
{
    (void)unused;
    int pipes[2];
    SYS(pipe(pipes));
    ssize_t n = write(pipes[1], memory + places[1] * PAGE, 8);
    ends[1] = n == 8 ? "there" : errno == EFAULT ? "EFAULT" : "another error";
    return NULL;
}

static void in_handler(int signal)
{
    (void)signal;
    ends[2] = load(places[2]) ? "there" : "SIGBUS";
}

static void *by_signal(void *unused)
{
    (void)unused;
    pthread_kill(pthread_self(), SIGUSR1);
    return NULL;
}

int main(int argc, char **argv)
{
    size_t pages = strtoull(argc > 1 ? argv[1] : "128", NULL, 0) * MIB / PAGE;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap: %s", strerror(errno));
    signal(SIGBUS, on_bus);
    signal(SIGUSR1, in_handler);
    alarm(200);
    while (stored < pages && store(stored))
        stored++;
    if (stored == pages)
        return puts("there is room for all"), 0;
    for (int i = 0; i < 3; i++)
        places[i] = out(i ? places[i - 1] + 100 : 0);
    CHECK(places[2] < stored / 2, "pages %zu, %zu and %zu of %zu are out", places[0], places[1], places[2],
          stored);
    void *(*const ways[3])(void *) = {by_load, by_call, by_signal};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, ways[i], NULL), "no thread");
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_join(threads[i], NULL), "no end");
    printf("a load: %s\na system call: %s\na signal handler: %s\n", ends[0], ends[1], ends[2]);
    /* With room all of it is as it was: what fails is tried again after a moment. */
    size_t kept = stored / 2;
    SYS(munmap(memory + kept * PAGE, (pages - kept) * PAGE));
    for (size_t page = 0; page < kept; page++)
        for (int turn = 0; !load(page); turn++) {
            CHECK(turn < 100, "page %zu never comes back", page);
            usleep(100 * 1000);
        }
    puts("all of the rest is right");
    return 0;
}
