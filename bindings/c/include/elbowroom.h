/*
 * Elbowroom: files and memory larger than RAM, under a hard budget, at real addresses.
 *
 * Each call that can fail returns 0, or an error number of <errno.h>; `er_error` then has a sentence for
 * people: what could not be done, why, and what to do. Sizes and offsets are bytes. Any thread may call
 * anything at any time, but not a signal handler. A handle that was given up, or is none, is EINVAL. No call
 * is broken off by a signal (EINTR); each waits for disks, and for nothing that has no bound.
 *
 * A forked child goes on with a copy of the manager: anonymous memory is copied when it is stored to. Files
 * that are mapped at a fork are the kernel's from then on, in the parent and in the child, and so are those
 * that the child maps.
 *
 * docs/c.md has examples. SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef ELBOWROOM_H
#define ELBOWROOM_H

/* Made from bindings/c/src by cbindgen: do not edit. */

#include <stddef.h>
#include <stdint.h>

/*
 For er_open and er_map: the bytes can be read.
 */
#define ER_READ 1

/*
 For er_open and er_map: the bytes can be stored to.
 */
#define ER_WRITE 2

/*
 For er_open: the file is made, with the permissions 0666 less the umask, if it is not there.
 */
#define ER_CREATE 4

/*
 For er_open: the file is managed also if other processes may change it meanwhile. What they write is seen
 late, and of two stores to one page one may be lost. Without it, a file is managed while no other process
 uses it, which takes CAP_SYS_ADMIN to know.
 */
#define ER_TRUST 8

/*
 In er_limits: no limit.
 */
#define ER_NO_LIMIT UINT64_MAX

/*
 In er_config: the library chooses.
 */
#define ER_AUTO UINT64_MAX

/*
 In er_config.flags: the swap file is encrypted, with a key that is only in the process's memory.
 */
#define ER_SWAP_ENCRYPT 1

/*
 In er_config.policy: each group's memory of files is divided as suits how it uses its chunks.
 */
#define ER_POLICY_AUTO 0

/*
 In er_config.policy: most of memory is for what was used again, a sixteenth for second chances.
 */
#define ER_POLICY_EVEN 1

/*
 In er_config.policy: what has come in first stays, as much as fits: for passes over more than memory.
 */
#define ER_POLICY_KEPT 2

/*
 In er_config.policy: half of memory is for second chances: for chunks of which some are used more often,
 such as experts of models.
 */
#define ER_POLICY_LONG 3

/*
 For er_map: stores stay in the mapping. Anonymous memory is always so.
 */
#define ER_PRIVATE 1

/*
 For er_map: if the manager cannot manage the file (another process uses it, say), the kernel maps it,
 beside the budget. Without it that is the error EOPNOTSUPP. er_is_managed tells.
 */
#define ER_OR_KERNEL 2

/*
 For er_map: the mapping begins at er_map_options.address. The library takes whole blocks of 2 MiB around
 it, in which nothing else may be mapped (EEXIST).
 */
#define ER_FIXED 4

/*
 For er_advise: no advice; streams of accesses are found, and read ahead.
 */
#define ER_NORMAL 0

/*
 For er_advise: single pages are read.
 */
#define ER_RANDOM 1

/*
 For er_advise: as much as possible is read at once.
 */
#define ER_SEQUENTIAL 2

/*
 For er_advise: the bytes are read now, without a wait for them.
 */
#define ER_WILLNEED 3

/*
 For er_advise: of anonymous memory and private copies the bytes are forgotten: they are zeros, or those of
 the file, when they are read again. Pages of files are only forgotten by this mapping.
 */
#define ER_DISCARD 4

/*
 For er_advise: the bytes will not be needed soon: they are the first that go.
 */
#define ER_COLD 5

/*
 For er_advise: the bytes leave memory now: to swap, or their file.
 */
#define ER_PAGEOUT 6

/*
 For er_advise: the bytes become zeros in the file, too, which frees their blocks. For shared mappings with
 ER_WRITE.
 */
#define ER_PUNCH 7

/*
 An open file.
 */
typedef struct er_file er_file;

/*
 A memory group: a part of the budget for some mappings.
 */
typedef struct er_group er_group;

/*
 The manager of the process. It has the budget, and serves the mappings.
 */
typedef struct er_manager er_manager;

/*
 What the mappings of a group, and of the groups below it, may have together. All but swappiness in bytes.
 Initialize it with er_limits_init.
 */
typedef struct er_limits {
    /*
     Bytes of this struct; er_limits_init sets it.
     */
    size_t size;
    /*
     They never have more in memory than this; at least 1 MiB. ER_NO_LIMIT by default.
     */
    uint64_t max;
    /*
     Threads that make the group have more are slowed down, and reclaim. ER_NO_LIMIT by default.
     */
    uint64_t high;
    /*
     So much is not taken from it while other groups have unprotected memory. 0 by default.
     */
    uint64_t low;
    /*
     So much is not taken from it, unless an access would fail else. 0 by default.
     */
    uint64_t min;
    /*
     They never have more in swap than this. ER_NO_LIMIT by default.
     */
    uint64_t swap_max;
    /*
     They never have more in memory and swap together. ER_NO_LIMIT by default.
     */
    uint64_t memory_swap_max;
    /*
     So much may differ from the files; threads that store more are slowed down. ER_NO_LIMIT by default.
     */
    uint64_t dirty;
    /*
     How readily anonymous memory goes, beside files: 0 to 200; 60 by default.
     */
    uint64_t swappiness;
} er_limits;

/*
 Figures of a group, with the groups below it.
 */
typedef struct er_group_stats {
    /*
     The number of the group.
     */
    uint64_t number;
    /*
     Bytes in memory now.
     */
    uint64_t usage_bytes;
    /*
     The most bytes in memory at a time.
     */
    uint64_t peak_bytes;
    /*
     Bytes in swap now.
     */
    uint64_t swap_bytes;
    /*
     The most bytes in swap at a time.
     */
    uint64_t swap_peak_bytes;
    /*
     Bytes of anonymous memory that are mapped.
     */
    uint64_t anonymous_bytes;
    /*
     Page faults.
     */
    uint64_t faults;
    /*
     Of these, faults that waited for a read.
     */
    uint64_t major_faults;
    /*
     Allocations that `max` did not permit at once.
     */
    uint64_t max_events;
    /*
     Accesses that found the group over its `high`.
     */
    uint64_t high_events;
    /*
     Accesses that failed, since the group stayed at its limits.
     */
    uint64_t failed_events;
} er_group_stats;

/*
 What a manager is started with. Initialize it with er_config_init, and then change what you want.
 */
typedef struct er_config {
    /*
     Bytes of this struct; er_config_init sets it. A later version of the library may have more fields.
     */
    size_t size;
    /*
     The budget: bytes of memory that all mappings, and what describes them, may have together. At least
     16 MiB. ER_AUTO: three quarters of the machine's memory, or of what its control group permits.
     */
    uint64_t memory;
    /*
     Bytes of anonymous memory that may be in the swap file. 0: none. ER_AUTO: as much as there is room
     for in the directory, and as the budget can describe (40 times its size).
     */
    uint64_t swap;
    /*
     The directory of the swap file, on a disk. The file has no name, and is gone with the process. NULL:
     /var/tmp.
     */
    const char *swap_dir;
    /*
     ER_SWAP_ENCRYPT, or 0.
     */
    uint32_t flags;
    /*
     Which pages of files go when memory is short: ER_POLICY_AUTO, ER_POLICY_EVEN, ER_POLICY_KEPT or
     ER_POLICY_LONG.
     */
    uint32_t policy;
    /*
     Given to the two functions below.
     */
    void *context;
    /*
     Called with a line of text, without its end, about a failure that is reported in no other way (for
     example a write-back that has failed), by a thread of the manager. It must not use managed memory,
     nor call the library. NULL: the line goes to standard error.
     */
    void (*report)(void *context, const char *line);
    /*
     Called when a group uses more than its `high`, in bytes, and nothing of it can be reclaimed: at most
     once a minute for each group. `group` is the number that er_group_get_stats gives. As report else.
     */
    void (*high_stuck)(void *context, uint64_t group, uint64_t usage_bytes, uint64_t high_bytes);
    /*
     For tests: faults that are injected into reads and writes, for example "read:eio:file=name".
     NULL: none.
     */
    const char *inject;
} er_config;

/*
 What er_map maps. Initialize it with er_map_options_init.
 */
typedef struct er_map_options {
    /*
     Bytes of this struct; er_map_options_init sets it.
     */
    size_t size;
    /*
     The file. NULL: anonymous memory, of zeros.
     */
    struct er_file *file;
    /*
     Where in the file, in bytes; a multiple of the page size, 4096.
     */
    uint64_t offset;
    /*
     Bytes. 0, with a file: to its end.
     */
    size_t length;
    /*
     ER_READ, or ER_READ | ER_WRITE, which is the default for anonymous memory.
     */
    uint32_t access;
    /*
     ER_PRIVATE, ER_OR_KERNEL, ER_FIXED.
     */
    uint32_t flags;
    /*
     The group that pays for the memory. NULL: the manager's budget alone.
     */
    struct er_group *group;
    /*
     With ER_FIXED: where it begins, a multiple of the page size.
     */
    void *address;
} er_map_options;

/*
 Figures of the manager. er_stats_json has all that there are.
 */
typedef struct er_stats {
    /*
     The budget, in bytes.
     */
    uint64_t budget_bytes;
    /*
     Of it, what is in use now, in bytes.
     */
    uint64_t resident_bytes;
    /*
     The most that was in use at a time, in bytes.
     */
    uint64_t peak_bytes;
    /*
     Page faults.
     */
    uint64_t faults;
    /*
     Of these, faults that waited for a read.
     */
    uint64_t major_faults;
    /*
     The 99th percentile of the times of faults, in nanoseconds.
     */
    uint64_t fault_p99_ns;
    /*
     Bytes read from files, without the swap file.
     */
    uint64_t read_bytes;
    /*
     Bytes written to files, without the swap file.
     */
    uint64_t written_bytes;
    /*
     Reads and writes that failed.
     */
    uint64_t io_errors;
    /*
     Pages taken from memory.
     */
    uint64_t evicted_pages;
    /*
     Of these, pages that were wanted again.
     */
    uint64_t refault_pages;
    /*
     Bytes of anonymous memory that are in swap now.
     */
    uint64_t swap_used_bytes;
    /*
     Pages of anonymous memory that went to swap.
     */
    uint64_t swap_out_pages;
    /*
     Pages of anonymous memory that came back.
     */
    uint64_t swap_in_pages;
    /*
     Files that went to the kernel.
     */
    uint64_t handed_back_files;
} er_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens a file.

 `flags`: ER_READ, with ER_WRITE, ER_CREATE and ER_TRUST if need be. `file`: where the handle goes. The
 program gets a descriptor more.

 Errors: those of open(2). EINVAL.

 Pointers: The pointers are NULL, or as described.
 */
int er_open(struct er_manager *manager, const char *name, uint32_t flags, struct er_file **file);

/*
 Makes a file of a descriptor that the program has open, which stays the program's. See er_open.

 `flags`: ER_READ, with ER_WRITE and ER_TRUST if need be.

 Errors: EBADF. EINVAL: it has O_APPEND, with which the kernel ignores the offset of a write.

 Pointers: The pointers are NULL, or as described.
 */
int er_open_fd(struct er_manager *manager, int fd, uint32_t flags, struct er_file **file);

/*
 Closes a file. Its mappings stay.

 Errors: EINVAL: this is no open file.
 */
int er_close(struct er_file *file);

/*
 The size of a file, in bytes.

 Errors: EBADF: the program has closed its descriptor. EINVAL.

 Pointers: `size` is NULL, or has room for a uint64_t.
 */
int er_file_size(struct er_file *file, uint64_t *size);

/*
 Makes a file `size` bytes long. Bytes that are new are zeros. An access to a mapping beyond the end of its
 file is SIGBUS.

 Errors: those of ftruncate(2). EINVAL.
 */
int er_file_resize(struct er_file *file, uint64_t size);

/*
 Reads bytes, also those that were just stored through a mapping. An I/O error is an error here, where it
 is SIGBUS in a mapping.

 `offset`, `length`: in bytes. `done`: how many bytes were read: less than `length` only where the file
 ends, or an error came; may be NULL.

 Errors: those of pread(2); EIO. EINVAL.

 Pointers: `to` has room for `length` bytes. `done` is NULL, or has room for a size_t.
 */
int er_file_read(struct er_file *file, uint64_t offset, void *to, size_t length, size_t *done);

/*
 Writes bytes. Mappings of the file in this process have them when the call returns. Durable after
 er_file_sync only.

 `offset`, `length`: in bytes. `done`: how many bytes were written, also if an error came; may be NULL.

 Errors: those of pwrite(2): ENOSPC, EIO, EBADF without ER_WRITE. EINVAL.

 Pointers: `from` has `length` bytes. `done` is NULL, or has room for a size_t.
 */
int er_file_write(struct er_file *file, uint64_t offset, const void *from, size_t length, size_t *done);

/*
 Writes all that was stored to the file, and waits until it is durable.

 Errors: the first error of a write-back since the last call: EIO, ENOSPC. EINVAL.
 */
int er_file_sync(struct er_file *file);

/*
 Sets all limits to their defaults. `size`: sizeof(er_limits).

 Pointers: `limits` has room for `size` bytes.
 */
void er_limits_init(struct er_limits *limits, size_t size);

/*
 Makes a group.

 `parent`: the group that it is a part of; NULL: the manager's budget. `limits`: NULL for none. `group`:
 where the handle goes.

 Errors: EINVAL: a limit. ENOSPC: there are 1,023 groups.

 Pointers: The pointers are NULL, or as described.
 */
int er_group_create(struct er_manager *manager,
                    struct er_group *parent,
                    const struct er_limits *limits,
                    struct er_group **group);

/*
 Gives up the handle of a group. The group itself goes with its last mapping and its last inner group.

 Errors: EINVAL: this is no group.
 */
int er_group_remove(struct er_group *group);

/*
 The limits of a group. `size`: sizeof(er_limits).

 Errors: EINVAL.

 Pointers: `limits` has room for `size` bytes.
 */
int er_group_get_limits(struct er_group *group, struct er_limits *limits, size_t size);

/*
 Changes the limits of a group. If it has more in memory, that is reclaimed before this returns.

 Errors: EINVAL: a limit, or less than its anonymous memory has. EBUSY: the limits are set, but not enough
 could be reclaimed within 2 seconds.

 Pointers: `limits` is NULL (no limits), or as described.
 */
int er_group_set_limits(struct er_group *group, const struct er_limits *limits);

/*
 The figures of a group. `size`: sizeof(er_group_stats).

 Errors: EINVAL.

 Pointers: `stats` has room for `size` bytes.
 */
int er_group_get_stats(struct er_group *group, struct er_group_stats *stats, size_t size);

/*
 The version of the library, as text: "0.1.0".
 */
const char *er_version(void);

/*
 What the calling thread's last call that failed has to say: a sentence with what could not be done, why,
 and what to do. "" before the first failure. Valid until the thread's next call that fails.
 */
const char *er_error(void);

/*
 Sets all fields of a config to their defaults. `size`: sizeof(er_config).

 Pointers: `config` has room for `size` bytes.
 */
void er_config_init(struct er_config *config, size_t size);

/*
 Starts the manager of the process: some threads, which have a file table of their own and block all
 signals, and address space. A process has one manager at a time; budgets for parts of a program are
 groups.

 `config`: NULL for the defaults. `manager`: where the handle goes.

 Errors: EBUSY: there is one already. ENOTSUP: this machine or this user cannot have one; er_error says
 what is missing, and `elbowroom doctor` what to do. EINVAL, E2BIG: the config. Any thread may call it.

 Pointers: The pointers are NULL, or as described.
 */
int er_start(const struct er_config *config, struct er_manager **manager);

/*
 Stops the manager: what was stored is written to the files, files and groups are closed, threads end.
 Returns when all of that is done. Another manager can be started then.

 Errors: EBUSY: mappings exist, or other threads' calls are under way; nothing was done. EINVAL: this is no
 manager.

 Pointers: None: any value is checked.
 */
int er_stop(struct er_manager *manager);

/*
 Sets all fields to their defaults. `size`: sizeof(er_map_options).

 Pointers: `options` has room for `size` bytes.
 */
void er_map_options_init(struct er_map_options *options, size_t size);

/*
 Maps a file, or anonymous memory. The bytes are reached by the pointer that is stored at `address`, by any
 thread. They come in when they are touched, within the budget.

 A file is not read beyond its end: such an access is SIGBUS, as is one to bytes that cannot be read.
 Memory that is promised here is there: what a group cannot have in memory fits into swap, beside what the
 other groups need there.

 Errors: ENOMEM: memory and swap of the group, or of all, do not have so much. EACCES: the file is not open
 for that. EOPNOTSUPP: the file cannot be managed, for the reason that er_error gives (see ER_TRUST and
 ER_OR_KERNEL). ENODEV: this is no regular file. EEXIST: ER_FIXED, and something is there. EINVAL.

 Pointers: The pointers are NULL, or as described.
 */
int er_map(struct er_manager *manager, const struct er_map_options *options, void **address);

/*
 Unmaps a mapping, all of it. What was stored to a file is written before this returns; whether that
 worked, er_sync tells before. No thread may use its bytes any more.

 `address`: where it begins, as er_map gave it.

 Errors: EINVAL: no mapping begins there.
 */
int er_unmap(struct er_manager *manager, void *address);

/*
 Writes what was stored to these bytes of a shared mapping to the file, and waits until it is durable. Does
 nothing for anonymous memory.

 `address`, `length`: inside of one mapping; whole pages are written.

 Errors: the first error of a write-back since the last call: EIO, ENOSPC. EINVAL.
 */
int er_sync(struct er_manager *manager, void *address, size_t length);

/*
 Gives advice about a range of a mapping.

 `address`, `length`: inside of one mapping. `advice`: ER_NORMAL, ER_RANDOM, ER_SEQUENTIAL, ER_WILLNEED,
 ER_DISCARD, ER_COLD, ER_PAGEOUT, ER_PUNCH. What forgets bytes (ER_DISCARD, ER_PUNCH) forgets whole pages,
 none of which has a byte beside the range.

 Errors: EINVAL: the advice is none for this mapping. EACCES: ER_PUNCH without ER_WRITE. EBUSY: a device
 uses the pages.
 */
int er_advise(struct er_manager *manager, void *address, size_t length, uint32_t advice);

/*
 Brings the bytes of a range in now, and keeps advice from taking them out until er_unpin. The budget comes
 first: where it is short of memory, pages go out all the same, and come in again when they are touched.

 `address`, `length`: inside of one mapping.

 Errors: ENOMEM: they do not all fit, or cannot be read. EINVAL.
 */
int er_pin(struct er_manager *manager, void *address, size_t length);

/*
 Undoes er_pin.

 Errors: EINVAL.
 */
int er_unpin(struct er_manager *manager, void *address, size_t length);

/*
 Whether the manager manages a mapping now, within the budget: 1, or 0 if the kernel does. A file goes to
 the kernel when another process comes to use it, unless it was opened with ER_TRUST, and at a fork.

 Errors: EINVAL: the address is in no mapping.

 Pointers: `managed` is NULL, or has room for an int.
 */
int er_is_managed(struct er_manager *manager, void *address, int *managed);

/*
 The figures. `size`: sizeof(er_stats).

 Errors: EINVAL.

 Pointers: `stats` has room for `size` bytes.
 */
int er_get_stats(struct er_manager *manager, struct er_stats *stats, size_t size);

/*
 All figures, as a JSON object: docs/stats.md has the keys.

 `buffer`: where the text goes, with a 0 at its end; may be NULL if `size` is 0. `size`: the room there, in
 bytes. `needed`: how much room the text needs; may be NULL.

 Errors: ERANGE: there is not enough room, and nothing was stored. The next text may be a little longer.

 Pointers: The pointers are NULL, or as described.
 */
int er_stats_json(struct er_manager *manager, char *buffer, size_t size, size_t *needed);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ELBOWROOM_H */
