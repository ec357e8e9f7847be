/* Blocks of memory for columns: small ones are malloc's, large ones come from the system and go back to it.

   Malloc keeps large blocks that were freed in arenas, one a thread. And where the system has huge pages for who asks,
   memory that is used for the first time costs a fault for 2 MiB in place of 512: a decoder whose batches are all kept
   spends most of its time in these. */

#ifndef TIEREDSTORE_PAGES_H
#define TIEREDSTORE_PAGES_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BLOCK_ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)
/* From this size on a block is the system's. */
#define LEAST_OF_PAGES ((size_t)1 << 20)

static inline void *take_pages(size_t size) {
    /* What surrounds the aligned part is given back at once; it was never touched. */
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

/* `size` bytes, NULL if there are none; whoever gives them back has to know the size. From LEAST_OF_PAGES on it is a
   multiple of the system's pages. */
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
