/* Memory blocks for columns. Small blocks come from malloc; large blocks come from the system and return to it when
   they are freed.

   Malloc would keep freed large blocks in an arena for each thread. And if the system gives huge pages on request, the
   first use of memory costs one page fault per 2 MiB instead of 512. If the caller keeps all record batches, a decoder
   spends most of its time in such faults. */

#ifndef TIEREDSTORE_PAGES_H
#define TIEREDSTORE_PAGES_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)
/* Blocks of this size or more come from the system. */
#define LEAST_OF_PAGES ((size_t)1 << 20)

static inline void *take_pages(size_t size) {
    /* Map a huge page more than needed, and unmap what lies around the aligned block. Those parts were never touched,
       so this costs no page faults. */
    uint8_t *all = (uint8_t *)mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == (uint8_t *)MAP_FAILED) return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)all % HUGE_PAGE) % HUGE_PAGE;
    if (before) munmap(all, before);
    if (before != HUGE_PAGE) munmap(all + before + size, HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
    madvise(all + before, size, MADV_HUGEPAGE);
#endif
    return all + before;
}

/* Return a block of `size` bytes; NULL if memory runs out. The caller passes the same size to free it. A size of
   LEAST_OF_PAGES or more must be a multiple of the system's page size. */
static inline void *take_block(size_t size) {
    void *block = NULL;
    if (size >= LEAST_OF_PAGES) return take_pages(size);
    return posix_memalign(&block, BLOCK_ALIGNMENT, size) ? NULL : block;
}

static inline void free_block(void *block, size_t size) {
    if (size < LEAST_OF_PAGES)
        free(block);
    else
        munmap(block, size);
}

#endif
