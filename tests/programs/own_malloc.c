/* A program with a malloc of its own in the executable, as those have that are linked with jemalloc: threads
 * allocate and fill blocks of chunks that it maps while it holds its lock, and copies of a mapped file's
 * pages; a child is started.
 *   own_malloc MIB FILE */
#include "common.h"

#define HEAD 16
#define THREADS 4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *next, *end;

static void *get(size_t bytes)
{
    bytes = (bytes + 2 * HEAD - 1) / HEAD * HEAD;
    pthread_mutex_lock(&lock);
    if (!next || bytes > (size_t)(end - next)) {
        size_t chunk = bytes > 4 * MIB ? bytes : 4 * MIB;
        next = mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        end = next + chunk;
        if (next == MAP_FAILED) {
            next = NULL;
            pthread_mutex_unlock(&lock);
            return NULL;
        }
    }
    char *at = next;
    next += bytes;
    /* Under the lock, where an allocator stores to its memory, too. */
    memcpy(at, &bytes, sizeof bytes);
    pthread_mutex_unlock(&lock);
    return at + HEAD;
}

void *malloc(size_t bytes)
{
    return get(bytes);
}

void free(void *block)
{
    (void)block;
}

void *calloc(size_t count, size_t bytes)
{
    return get(count * bytes);
}

void *realloc(void *block, size_t bytes)
{
    void *new = get(bytes);
    size_t has = 0;
    if (block)
        memcpy(&has, (char *)block - HEAD, sizeof has);
    if (new && block)
        memcpy(new, block, has - HEAD < bytes ? has - HEAD : bytes);
    return new;
}

void *memalign(size_t align, size_t bytes)
{
    uintptr_t at = (uintptr_t)get(bytes + align);
    return (void *)((at + align - 1) / align * align);
}

int posix_memalign(void **to, size_t align, size_t bytes)
{
    *to = memalign(align, bytes);
    return 0;
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return memalign(align, bytes);
}

static const char *file;
static size_t file_bytes;

static void *fill(void *bytes)
{
    for (size_t done = 0; done < (uintptr_t)bytes; done += 256) {
        char *block = reallocarray(malloc(10), 240, 1);
        memcpy(block, file + done * 16 % (file_bytes - 240), 240);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: own_malloc MIB FILE");
    int fd = SYS(open(argv[2], O_RDONLY));
    struct stat stat;
    SYS(fstat(fd, &stat));
    file_bytes = stat.st_size;
    file = mmap(NULL, file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED, "mmap: %s", strerror(errno));
    size_t bytes = strtoul(argv[1], NULL, 10) * MIB;
    pthread_t threads[THREADS];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < THREADS; i++)
            CHECK(pthread_create(&threads[i], NULL, fill, (void *)(bytes / 4 / THREADS)) == 0, "a thread");
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
    }
    FILE *child = popen("echo child", "r");
    char line[16] = "";
    CHECK(child && fgets(line, sizeof line, child) && strcmp(line, "child\n") == 0, "popen: %s", line);
    pclose(child);
    puts("ok");
    return 0;
}
