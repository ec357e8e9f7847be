# Frozen values put together without their constructors.

cdef extern from "_frozen.h":
    Py_ssize_t slot_of(object type, const char* name) except -1
    object empty_value(object type)
    void set_slot(object value, Py_ssize_t place, object content)
    object get_slot(object value, Py_ssize_t place)
    void leave_uncollected(object value)
