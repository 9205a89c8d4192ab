/*
 * For programs written for umap, LLNL's library that pages files by userfaultfd: the calls of its
 * <umap/umap.h>, done by Elbowroom. Link with -lelbowroom instead of -lumap.
 *
 * The buffer is the budget of the manager: UMAP_BUFSIZE pages of UMAP_PAGESIZE bytes, at least 16 MiB; three
 * quarters of the machine's memory by default. If the program has called er_start before, it is that
 * manager's. The other variables of umap are read by the getters, and have no effect. Where umap ends the
 * program, these calls fail, with errno; er_error (elbowroom.h) has a text. Stores of a program's own
 * (Umap::Store) are not supported.
 *
 * docs/c.md has the differences. SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef ELBOWROOM_UMAP_H
#define ELBOWROOM_UMAP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

/* What is stored reaches the file, although the flag is called so. */
#define UMAP_PRIVATE MAP_PRIVATE
/* The region begins at the address, and replaces what lies there of one other region. */
#define UMAP_FIXED MAP_FIXED
#define UMAP_FAILED ((void *)-1)

#ifdef __cplusplus
extern "C" {
#endif

/* A page to be read ahead: an address in it. */
struct umap_prefetch_item {
    void *page_base_addr;
};

/*
 * Maps a file, as mmap(2). Address and length are multiples of UMAP_PAGESIZE. prot: PROT_READ, perhaps with
 * PROT_WRITE. flags: UMAP_PRIVATE, perhaps with UMAP_FIXED. UMAP_FAILED: errno says why.
 */
void *umap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);

#ifndef __cplusplus
/* The same; the store is NULL, else that is ENOTSUP. */
void *umap_ex(void *addr, size_t length, int prot, int flags, int fd, off_t offset, void *store);
#endif

/* Unmaps the region that begins at the address; what was stored is in the file then. 0, or -1 with errno. */
int uunmap(void *addr, size_t length);

/* Writes what was stored through all regions to their files. 0, or -1 with errno. */
int umap_flush(void);

/* Begins to read pages of UMAP_PAGESIZE bytes. */
void umap_prefetch(int npages, struct umap_prefetch_item *page_array);

/* Reads a range now. Its pages leave memory all the same where the budget is short. */
void umap_fetch_and_pin(char *paddr, uint64_t size);

/* 1. */
int umap_has_write_support(void);

long umapcfg_get_system_page_size(void);
uint64_t umapcfg_get_umap_page_size(void);
uint64_t umapcfg_get_max_pages_in_buffer(void);
uint64_t umapcfg_get_max_fault_events(void);
uint64_t umapcfg_get_num_fillers(void);
uint64_t umapcfg_get_num_evictors(void);
uint64_t umapcfg_get_read_ahead(void);
int umapcfg_get_evict_low_water_threshold(void);
int umapcfg_get_evict_high_water_threshold(void);

#ifdef __cplusplus
} /* extern "C" */

#include <cerrno>

namespace Umap {

/* Only a pointer to it, NULL, can be given. */
class Store;

inline void *umap_ex(void *addr, std::size_t length, int prot, int flags, int fd, off_t offset, Store *store)
{
    if (store != nullptr) {
        errno = ENOTSUP;
        return UMAP_FAILED;
    }
    return umap(addr, length, prot, flags, fd, offset);
}

} // namespace Umap
#endif

#endif /* ELBOWROOM_UMAP_H */
