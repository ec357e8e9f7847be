from libc.stdint cimport uint8_t

cdef class SlabPool:
    cdef uint8_t* kept[32]
    cdef Py_ssize_t kept_sizes[32]
    cdef Py_ssize_t kept_bytes

    cdef uint8_t* take(self, Py_ssize_t* size) noexcept
    cdef void give_back(self, uint8_t* data, Py_ssize_t size) noexcept
    cdef Py_ssize_t _free_slot(self, Py_ssize_t size) noexcept

cdef class Slab:
    cdef uint8_t* data
    cdef readonly Py_ssize_t size
    cdef SlabPool pool

cdef Slab adopt_slab(SlabPool pool, uint8_t* data, Py_ssize_t size)
