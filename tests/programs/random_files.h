/* Steps of random.c: calls on files, with buffers of the program's own and inside mappings; and children. */
#include "random.h"

/* The slot's descriptor and what it says, at the begin of a step. */
static int use_slot(struct worker *w, int slot)
{
    put(w, " s%d/f%d", slot, w->slot_file[slot]);
    return w->slots[slot];
}

static void fill(struct worker *w, size_t len)
{
    pattern_fill(rng_next(&w->rng), 0, w->buffer, len);
}

/* ---- descriptors ---- */

static void step_reopen(struct worker *w)
{
    char path[4096];
    int slot = (int)below(w, SLOTS);
    unsigned how = (unsigned)below(w, 12);
    put(w, " s%d", slot);
    if (w->slots[slot] >= 0 && how < 2) {
        put(w, " close");
        go(w);
        put_result(w, close(w->slots[slot]));
        w->slots[slot] = -1;
        return;
    }
    if (w->slots[slot] >= 0)
        close(w->slots[slot]);
    if (how == 11 && slot_modes[slot].file != ODD_FILE) {
        int other = (slot + 3) % 8;
        put(w, " dup s%d", other);
        go(w);
        w->slots[slot] = fcntl(w->slots[other], F_DUPFD_CLOEXEC, 0);
        w->slot_file[slot] = w->slot_file[other];
        put_result(w, w->slots[slot] < 0 ? -1 : 0);
        return;
    }
    int file = w->slot_file[slot] = slot_modes[slot].file;
    int flags = slot_modes[slot].flags | O_CREAT | O_CLOEXEC;
    file_path(path, sizeof path, w, file);
    if (how == 10 && (flags & O_ACCMODE) != O_RDONLY)
        flags |= O_TRUNC;
    if (how == 9 && file != ODD_FILE) {
        put(w, " unlink");
        unlink(path);
    }
    put(w, " open%s", flags & O_TRUNC ? " truncate" : "");
    go(w);
    w->slots[slot] = open(path, flags, 0644);
    put_result(w, w->slots[slot] < 0 ? -1 : 0);
    put(w, " size %llu", (unsigned long long)size_of(w->slots[slot]));
}

static void step_seek(struct worker *w)
{
    int slot = (int)below(w, SLOTS), fd = use_slot(w, slot);
    int whence = ONE_OF(w, SEEK_SET, SEEK_SET, SEEK_SET, SEEK_CUR, SEEK_END, 99);
    off_t to = (off_t)some_file_offset(w);
    to = whence == SEEK_SET ? to : whence == SEEK_CUR ? to % 8192 - 4096 : -(to % 65536);
    put(w, " %d %lld", whence, (long long)to);
    go(w);
    put_result(w, (long)lseek(fd, to, whence));
}

/* ---- writes and reads ---- */

/* Far enough from the end of the space for files that they do not grow without bound. */
static bool too_long(struct worker *w, int slot)
{
    uint64_t at = (uint64_t)lseek(w->slots[slot], 0, SEEK_CUR);
    return size_of(w->slots[slot]) > 2 * FILE_PAGES * PAGE ||
           (at != UINT64_MAX && at > 2 * FILE_PAGES * PAGE);
}

static ssize_t write_somehow(struct worker *w, int fd, const uint8_t *from, size_t len, off_t offset)
{
    unsigned how = (unsigned)below(w, 9);
    struct iovec parts[3] = {
        {(void *)from, len / 3}, {(void *)(from + len / 3), 0}, {(void *)from, len - len / 3}};
    static const char *const names[] = {"write", "write", "pwrite", "pwrite", "writev", "pwritev",
                                        "pwritev2-append", "pwritev2-no-append", "pwritev2-cursor"};
    parts[2].iov_base = (void *)(from + len / 3);
    put(w, " %s %zu @%lld", names[how], len, (long long)offset);
    go(w);
    switch (how) {
    case 0: case 1: return write(fd, from, len);
    case 2: case 3: return pwrite(fd, from, len, offset);
    case 4: return writev(fd, parts, 3);
    case 5: return pwritev(fd, parts, 3, offset);
    case 6: return pwritev2(fd, parts, 3, offset, RWF_APPEND);
    case 7: return pwritev2(fd, parts, 3, offset, RWF_NOAPPEND);
    default: return pwritev2(fd, parts, 3, -1, 0);
    }
}

static void step_write(struct worker *w)
{
    int slot = (int)below(w, SLOTS), fd = use_slot(w, slot);
    size_t len = some_bytes(w);
    off_t offset = (off_t)some_file_offset(w);
    bool after = chance(w, 40);
    fill(w, len);
    if (too_long(w, slot))
        return;
    ssize_t n = write_somehow(w, fd, w->buffer, len, offset);
    put_result(w, n);
    settle_size(w, slot);
    put(w, " at %lld", (long long)lseek(fd, 0, SEEK_CUR));
    if (after)
        sum_part(w, fd, (uint64_t)offset, len);
}

/* Whether all of it has the right to be read, and can be. */
static bool may_read(const uint8_t *from, size_t len)
{
    for (size_t at = 0; at < len; at += PAGE - ((uintptr_t)from + at) % PAGE) {
        char byte;
        struct iovec local = {&byte, 1}, remote = {(void *)(from + at), 1};
        if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1)
            return false;
    }
    return true;
}

/* From memory of the region into a file, a pipe or a socket. */
static void step_write_from(struct worker *w)
{
    struct range range = any_range(w, 30);
    int slot = (int)below(w, SLOTS);
    unsigned how = (unsigned)below(w, 10);
    off_t offset = (off_t)some_file_offset(w);
    size_t inside = chance(w, 50) ? below(w, PAGE) : 0;
    put_range(w, &range);
    if (!range.at)
        return;
    size_t len = range.pages * PAGE - inside;
    uint8_t *from = range.at + inside;
    if (how < 7) {
        int fd = use_slot(w, slot);
        if (too_long(w, slot) || !apart(&range, range.pages, w->slot_file[slot]))
            return;
        put_result(w, write_somehow(w, fd, from, len, offset));
        settle_size(w, slot);
        sum_part(w, fd, (uint64_t)offset, len);
        return;
    }
    len = len < 8 * PAGE ? len : 8 * PAGE;
    put(w, how == 7 ? " pipe" : how == 8 ? " socket" : " vmsplice");
    put(w, " %zu", len);
    go(w);
    if (how == 9) {
        /* Memory without the right to read can be lent only as far as its pages are present, and are not the
         * page of zeros. Whether they are is the system's own affair. */
        look(w, range.at, (inside + len + PAGE - 1) / PAGE);
        if (!may_read(from, len)) {
            put(w, " not readable");
            return;
        }
    }
    struct iovec part = {from, len};
    ssize_t n = how == 7   ? write(w->pipe[1], from, len)
                : how == 8 ? send(w->pair[0], from, len, MSG_DONTWAIT)
                           : vmsplice(w->pipe[1], &part, 1, SPLICE_F_NONBLOCK);
    put_result(w, n);
    size_t got = 0;
    for (ssize_t m; (m = read(how == 8 ? w->pair[1] : w->pipe[0], w->buffer + got, BUFFER - got)) > 0;)
        got += (size_t)m;
    put(w, " got %zu:%08x", got, (unsigned)sum_bytes(w->buffer, got, 0));
}

static void step_read(struct worker *w)
{
    int slot = (int)below(w, SLOTS), fd = use_slot(w, slot);
    size_t len = some_bytes(w);
    off_t offset = (off_t)some_file_offset(w);
    unsigned how = (unsigned)below(w, 4);
    struct iovec parts[2] = {{w->buffer, len / 2}, {w->buffer + len / 2, len - len / 2}};
    put(w, " %zu @%lld kind %u", len, (long long)offset, how);
    go(w);
    ssize_t n = how == 0   ? read(fd, w->buffer, len)
                : how == 1 ? pread(fd, w->buffer, len, offset)
                : how == 2 ? readv(fd, parts, 2)
                           : preadv(fd, parts, 2, offset);
    put_result(w, n);
    if (n > 0)
        put(w, ":%08x", (unsigned)sum_bytes(w->buffer, (size_t)n, 0));
}

/* Into memory of the region, from a file, a pipe or a socket. */
static void step_read_into(struct worker *w)
{
    struct range range = any_range(w, 30);
    int slot = (int)below(w, SLOTS);
    unsigned how = (unsigned)below(w, 8);
    off_t offset = (off_t)some_file_offset(w);
    size_t inside = chance(w, 50) ? below(w, PAGE) : 0;
    put_range(w, &range);
    if (!range.at)
        return;
    size_t len = range.pages * PAGE - inside;
    uint8_t *to = range.at + inside;
    struct iovec parts[2] = {{to, len / 2}, {to + len / 2, len - len / 2}};
    if (how < 6) {
        int fd = use_slot(w, slot);
        if (!apart(&range, range.pages, w->slot_file[slot]))
            return;
        put(w, " %zu @%lld kind %u", len, (long long)offset, how);
        go(w);
        put_result(w, how == 0   ? read(fd, to, len)
                      : how == 1 ? readv(fd, parts, 2)
                      : how == 2 ? preadv(fd, parts, 2, offset)
                                 : pread(fd, to, len, offset));
    } else {
        size_t sent = len < 4 * PAGE ? len : 4 * PAGE;
        fill(w, sent);
        put(w, how == 6 ? " pipe %zu" : " socket %zu", sent);
        go(w);
        if (how == 6)
            SYS(write(w->pipe[1], w->buffer, sent));
        else
            SYS(send(w->pair[0], w->buffer, sent, 0));
        put_result(w, how == 6 ? read(w->pipe[0], to, sent) : recv(w->pair[1], to, sent, MSG_DONTWAIT));
        size_t rest = 0;
        for (ssize_t m; (m = read(how == 6 ? w->pipe[0] : w->pair[1], w->buffer, BUFFER)) > 0;)
            rest += (size_t)m;
        put(w, " rest %zu", rest);
    }
    look(w, range.at, range.pages);
}

/* This process's memory by its number. */
static void step_process_memory(struct worker *w)
{
    struct range range = any_range(w, 12);
    bool store = chance(w, 50);
    size_t inside = below(w, PAGE);
    put_range(w, &range);
    if (!range.at)
        return;
    size_t len = range.pages * PAGE - inside;
    struct iovec ours = {w->buffer, len}, theirs = {range.at + inside, len};
    put(w, store ? " write %zu" : " read %zu", len);
    if (store)
        fill(w, len);
    go(w);
    ssize_t n = store ? process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0) :
                process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0);
    put_result(w, n);
    if (n > 0 && !store)
        put(w, ":%08x", (unsigned)sum_bytes(w->buffer, (size_t)n, 0));
    if (store)
        look(w, range.at, range.pages);
}

/* ---- sizes, holes, copies ---- */

static void step_truncate(struct worker *w)
{
    int slot = (int)below(w, SLOTS);
    uint64_t size = below(w, FILE_PAGES), other = below(w, FILE_PAGES), odd = below(w, PAGE);
    bool by_path = chance(w, 15);
    char path[4096];
    int file = w->slot_file[slot], fd = use_slot(w, slot);
    size = (size > other ? size : other) * PAGE + (file == ODD_FILE ? odd : 0);
    file_path(path, sizeof path, w, file);
    put(w, " to %llu%s", (unsigned long long)size, by_path ? " path" : "");
    go(w);
    put_result(w, by_path ? truncate(path, (off_t)size) : ftruncate(fd, (off_t)size));
}

static void step_allocate(struct worker *w)
{
    int slot = (int)below(w, SLOTS), fd = use_slot(w, slot);
    /* FALLOC_FL_KEEP_SIZE 1, PUNCH_HOLE 2, COLLAPSE_RANGE 8, ZERO_RANGE 16, INSERT_RANGE 32. */
    int mode = ONE_OF(w, 0, 0, 1, 3, 3, 3, 3, 3, 2, 16, 16, 17, 8, 32, 64);
    uint64_t offset = some_file_offset(w), len = some_bytes(w);
    if (mode == 8 || mode == 32) {
        offset &= ~(uint64_t)(PAGE - 1);
        len = (len / PAGE + 1) * PAGE;
    }
    put(w, " mode %d @%llu %llu", mode, (unsigned long long)offset, (unsigned long long)len);
    if (too_long(w, slot))
        return;
    go(w);
    put_result(w, fallocate(fd, mode, (off_t)offset, (off_t)len));
    settle_size(w, slot);
    sum_part(w, fd, offset & ~(uint64_t)(PAGE - 1), len + PAGE);
}

static void step_copy_files(struct worker *w)
{
    int from = (int)below(w, SLOTS), to = (int)below(w, SLOTS);
    unsigned how = (unsigned)below(w, 6);
    loff_t in = (loff_t)some_file_offset(w), out = (loff_t)some_file_offset(w);
    size_t len = some_bytes(w);
    int source = use_slot(w, from), target = use_slot(w, to);
    put(w, " %s %zu @%lld @%lld",
        how < 2 ? "copy" : how == 2 ? "copy-cursor" : how < 5 ? "send" : "splice", len, (long long)in,
        (long long)out);
    if (too_long(w, to) || w->slot_file[from] == w->slot_file[to])
        return;
    go(w);
    ssize_t n = 0;
    if (how < 5) {
        /* The kernel may stop at any multiple of 64 KiB. */
        size_t done = 0;
        do {
            if (how < 2)
                n = copy_file_range(source, &in, target, &out, len - done, 0);
            else if (how == 2)
                n = copy_file_range(source, NULL, target, NULL, len - done, 0);
            else
                n = sendfile(target, source, how == 3 ? NULL : &in, len - done);
            done += n > 0 ? (size_t)n : 0;
        } while (n > 0 && done < len);
        n = done ? (ssize_t)done : n;
    } else {
        n = splice(source, &in, w->pipe[1], NULL, len < 16384 ? len : 16384, 0);
        put_result(w, n);
        if (n > 0)
            n = splice(w->pipe[0], NULL, target, &out, (size_t)n, 0);
        while (read(w->pipe[0], w->buffer, BUFFER) > 0)
            ;
    }
    put_result(w, n);
    put(w, " in %lld out %lld", (long long)in, (long long)out);
    settle_size(w, to);
    sum_file(w, w->slot_file[to]);
}

/* What a copy that leaves out the holes would have is what a whole copy has. */
static void step_sparse(struct worker *w)
{
    int slot = (int)below(w, SLOTS), fd = use_slot(w, slot);
    off_t kept = lseek(fd, 0, SEEK_CUR), size = (off_t)size_of(fd);
    go(w);
    uint64_t lost = 0;
    for (off_t at = 0; at < size;) {
        off_t data = lseek(fd, at, SEEK_DATA);
        data = data < 0 ? size : data;
        for (; at < data;) {
            ssize_t n = pread(fd, w->buffer, data - at < (off_t)BUFFER ? (size_t)(data - at) : BUFFER, at);
            if (n <= 0)
                break;
            for (ssize_t i = 0; i < n; i++)
                lost += w->buffer[i] != 0;
            at += n;
        }
        at = lseek(fd, data, SEEK_HOLE);
        if (at < 0)
            break;
    }
    lseek(fd, kept, SEEK_SET);
    put(w, " lost %llu of %lld", (unsigned long long)lost, (long long)size);
}

static void step_flush(struct worker *w)
{
    int slot = (int)below(w, SLOTS), fd = use_slot(w, slot);
    unsigned how = (unsigned)below(w, 8);
    put(w, " kind %u", how);
    go(w);
    put_result(w, how == 0   ? fsync(fd)
                  : how == 1 ? fdatasync(fd)
                  : how < 5  ? sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE)
                             : posix_fadvise(fd, 0, 0, how == 5 ? POSIX_FADV_RANDOM : POSIX_FADV_DONTNEED));
}

static void step_stream(struct worker *w)
{
    char path[4096];
    int file = (int)below(w, FILES);
    unsigned how = (unsigned)below(w, 10);
    off_t offset = (off_t)some_file_offset(w);
    size_t len = some_bytes(w);
    len = len < 9000 ? len : 9000;
    file_path(path, sizeof path, w, file);
    fill(w, len);
    put(w, " f%d %s @%lld %zu", file, how < 5 ? "read" : how < 9 ? "write" : "rewrite",
        (long long)offset, len);
    go(w);
    FILE *stream = fopen(path, how < 5 ? "re" : how < 9 ? "r+e" : "w+e");
    if (!stream) {
        put_result(w, -1);
        return;
    }
    put_result(w, fseeko(stream, offset, SEEK_SET));
    size_t n = how < 5 ? fread(w->buffer, 1, len, stream) : fwrite(w->buffer, 1, len, stream);
    put(w, " = %zu:%08x", n, (unsigned)sum_bytes(w->buffer, n, 0));
    if (how >= 5) {
        put_result(w, fflush(stream));
        uint64_t size = size_of(fileno(stream));
        if (file != ODD_FILE && size % PAGE)
            put_result(w, ftruncate(fileno(stream), (off_t)((size + PAGE - 1) & ~(PAGE - 1))));
    }
    put_result(w, fclose(stream));
    if (how >= 5)
        sum_file(w, file);
}

/* ---- children ---- */

/* The begin of a child: what it does with the file is printed. */
static int child_main(char **args)
{
    const char *mode = args[0];
    uint64_t offset = strtoull(args[2], NULL, 0), len = strtoull(args[3], NULL, 0), size;
    static uint8_t buffer[BUFFER];
    bool writes = !strcmp(mode, "write") || !strcmp(mode, "store");
    int fd = open(args[1], writes ? O_RDWR : O_RDONLY);
    if (fd < 0)
        return printf("child: %s\n", strerrorname_np(errno)) < 0;
    size = file_size(fd);
    len = size <= offset ? 0 : len < size - offset ? len : size - offset;
    uint64_t sum = 0;
    pattern_fill(strtoull(args[4], NULL, 0), 0, buffer, len < BUFFER ? len : BUFFER);
    if (!strcmp(mode, "read")) {
        for (ssize_t n; (n = read(fd, buffer, BUFFER)) > 0;)
            sum = mix(sum ^ sum_bytes(buffer, (size_t)n, 0));
    } else if (!strcmp(mode, "write") && len) {
        pwrite_all(fd, buffer, len, offset);
    } else if (size) {
        uint8_t *at = map_file(fd, size, writes ? RW : PROT_READ, MAP_SHARED, 0);
        if (writes)
            memcpy(at + offset, buffer, len);
        else
            sum = sum_bytes(at, size, 0);
    }
    printf("child: size %llu %08x\n", (unsigned long long)size, (unsigned)sum);
    return 0;
}

static void step_child(struct worker *w)
{
    static const char *const modes[] = {"read", "map", "write", "store"};
    char path[4096], numbers[3][32], text[256];
    int file = (int)below(w, FILES), output[2], status;
    unsigned mode = (unsigned)below(w, 4);
    /* posix_spawn maps a stack, which could lie in a hole of another thread's part for that time. */
    bool spawn = chance(w, 50) && options.threads == 1;
    uint64_t offset = some_file_offset(w), len = some_bytes(w);
    pid_t pid = -1;
    snprintf(numbers[0], 32, "%llu", (unsigned long long)offset);
    snprintf(numbers[1], 32, "%llu", (unsigned long long)len);
    snprintf(numbers[2], 32, "%llu", (unsigned long long)rng_next(&w->rng));
    file_path(path, sizeof path, w, file);
    char *args[] = {"random", "child", (char *)modes[mode], path, numbers[0], numbers[1], numbers[2], NULL};
    put(w, " %s %s f%d @%s %s", spawn ? "spawn" : "fork", modes[mode], file, numbers[0], numbers[1]);
    go(w);
    SYS(pipe2(output, O_CLOEXEC));
    if (spawn) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, output[1], 1);
        int error = posix_spawn(&pid, options.self, &actions, NULL, args, environ);
        CHECK(error == 0, "posix_spawn: %s", strerror(error));
        posix_spawn_file_actions_destroy(&actions);
    } else if ((pid = (pid_t)SYS(fork())) == 0) {
        dup2(output[1], 1);
        execv(options.self, args);
        _exit(97);
    }
    close(output[1]);
    size_t got = 0;
    for (ssize_t n; (n = read(output[0], text + got, sizeof text - got)) > 0;)
        got += (size_t)n;
    close(output[0]);
    SYS(waitpid(pid, &status, 0));
    got -= got && text[got - 1] == '\n';
    put(w, " = %#x %.*s", (unsigned)status, (int)got, text);
    sum_file(w, file);
}
