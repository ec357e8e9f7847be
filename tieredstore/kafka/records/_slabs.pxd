from libc.stdint cimport uint8_t

cdef class SlabPool:
    cdef uint8_t* kept[64]
    cdef Py_ssize_t kept_sizes[64]
    cdef Py_ssize_t kept_bytes
    cdef Py_ssize_t usual[32]
    cdef object __weakref__

    cdef uint8_t* take(self, Py_ssize_t* size) noexcept
    cdef void give_back(self, uint8_t* data, Py_ssize_t size) noexcept
    cdef Py_ssize_t _free_slot(self, Py_ssize_t size) noexcept

cdef class Slab:
    cdef uint8_t* data
    cdef readonly Py_ssize_t size
    cdef SlabPool pool

cdef Slab adopt_slab(SlabPool pool, uint8_t* data, Py_ssize_t size)
