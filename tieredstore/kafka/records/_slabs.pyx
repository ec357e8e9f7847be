# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reused blocks of memory.

Fresh memory from the system costs a page fault every 4 KiB, several times the cost of filling it. A slab (a block of
memory) returns to its pool when the last Arrow array or memoryview over it is gone. So a reader that drops each batch
after use keeps using the same few slabs.
"""

import weakref

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint8_t, uintptr_t

cdef extern from "_pages.h" nogil:
    enum:
        BLOCK_ALIGNMENT
    void* take_block(size_t size)
    void free_block(void* block, size_t size)

cdef enum:
    SLOTS = 64
    # Smaller blocks are left to malloc, which provides them without page faults.
    LEAST_KEPT = 32 * 1024
    # Slabs of this size or more consist of whole system pages; no system has larger pages.
    STEP = 64 * 1024
    MOST_KEPT = 16 * 1024 * 1024
    MOST_KEPT_TOGETHER = 64 * 1024 * 1024


cdef class SlabPool:
    """Slabs for decoders. Any thread that holds the interpreter's lock may take and drop slabs.

    ``usual`` records the final size of each column buffer, by the buffer's number. Logs that a process reads are
    usually alike, so the next log begins with slabs of the recorded sizes.
    """

    def __dealloc__(self):
        cdef Py_ssize_t slot
        for slot in range(SLOTS):
            if self.kept[slot] != NULL:
                free_block(self.kept[slot], self.kept_sizes[slot])

    def slab(self, Py_ssize_t size):
        """Return a slab of ``size`` bytes or more, with any content. Raise MemoryError if the system has no more."""
        cdef Py_ssize_t room = size
        cdef uint8_t* data = self.take(&room)
        if data == NULL:
            raise MemoryError(f"there is no memory for a slab of {size} bytes")
        return adopt_slab(self, data, room)

    cdef uint8_t* take(self, Py_ssize_t* size) noexcept:
        """Return memory of ``size`` bytes or more, and set ``size`` to the real size; NULL if memory runs out."""
        cdef Py_ssize_t slot, best = -1
        cdef uint8_t* kept
        cdef Py_ssize_t step = BLOCK_ALIGNMENT
        if size[0] > LEAST_KEPT // 2:
            step = LEAST_KEPT if size[0] < STEP else STEP
        size[0] = (size[0] + step) // step * step
        for slot in range(SLOTS):
            # A slab of over twice the size is not used: a small column that is kept for long would occupy all of it.
            if self.kept[slot] != NULL and size[0] <= self.kept_sizes[slot] <= 2 * size[0]:
                if best < 0 or self.kept_sizes[slot] < self.kept_sizes[best]:
                    best = slot
        if best >= 0:
            kept, self.kept[best] = self.kept[best], NULL
            size[0] = self.kept_sizes[best]
            self.kept_bytes -= size[0]
            return kept
        return <uint8_t*>take_block(size[0])

    cdef void give_back(self, uint8_t* data, Py_ssize_t size) noexcept:
        cdef Py_ssize_t slot
        if LEAST_KEPT <= size <= MOST_KEPT:
            # If no slot is free, the smallest slab is freed for a larger one: larger slabs serve more requests.
            slot = self._free_slot(size)
            if slot >= 0:
                self.kept[slot], self.kept_sizes[slot] = data, size
                self.kept_bytes += size
                return
        free_block(data, size)

    cdef Py_ssize_t _free_slot(self, Py_ssize_t size) noexcept:
        cdef Py_ssize_t slot, smallest = 0
        for slot in range(SLOTS):
            if self.kept[slot] == NULL:
                return slot if self.kept_bytes + size <= MOST_KEPT_TOGETHER else -1
            if self.kept_sizes[slot] < self.kept_sizes[smallest]:
                smallest = slot
        if self.kept_sizes[smallest] >= size or self.kept_bytes + size > MOST_KEPT_TOGETHER:
            return -1
        free_block(self.kept[smallest], self.kept_sizes[smallest])
        self.kept_bytes -= self.kept_sizes[smallest]
        return smallest


_shared = None


def shared_pool():
    """Return the pool of this process. It lives as long as a decoder or a slab does.

    Each part of a log gets a new decoder. If each decoder had its own pool, each would begin with fresh memory.
    """
    global _shared
    pool = None if _shared is None else _shared()
    if pool is None:
        # Two threads may both make a pool here; later callers share the last one.
        pool = SlabPool()
        _shared = weakref.ref(pool)
    return pool


@cython.final
@cython.no_gc
cdef class Slab:
    """A writable buffer, aligned for Arrow, that returns to its pool when nothing refers to it any more."""

    def __dealloc__(self):
        if self.data != NULL:
            self.pool.give_back(self.data, self.size)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 0, flags)

    @property
    def address(self):
        """The slab's address."""
        return <uintptr_t>self.data


cdef Slab adopt_slab(SlabPool pool, uint8_t* data, Py_ssize_t size):
    """Make a slab from memory that was taken from the pool."""
    cdef Slab slab = Slab.__new__(Slab)
    slab.pool, slab.data, slab.size = pool, data, size
    return slab
