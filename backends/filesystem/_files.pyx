# cython: language_level=3
"""Many files of one folder in one visit to the system, without the interpreter's lock: what a planning spends its time
on are system calls, and a thread that gives up the lock for each of them waits for it as often.

What is not as it nearly always is gives None or nothing here: whoever asked looks again, one by one, and says what it
is.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport ENOENT, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

cdef extern from "<sys/stat.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    struct status "stat":
        unsigned int st_mode
        long st_size
        timespec st_mtim
    int fstat(int descriptor, status* result)
    int fstatat(int folder, const char* name, status* result, int flags)
    bint is_file "S_ISREG"(unsigned int mode)

cdef extern from "<fcntl.h>" nogil:
    int AT_SYMLINK_NOFOLLOW, O_RDONLY, O_NOFOLLOW, O_NONBLOCK, O_CLOEXEC
    int openat(int folder, const char* name, int flags)

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t read(int descriptor, void* to, size_t size)
    int close(int descriptor)

cdef enum:
    LONGEST = 65536  # of a file that is read here
    ROOM = 1048576  # for the bytes of one visit
    MOST = 1024  # files of one visit

# What became of one file.
cdef struct Seen:
    int64_t size  # -1: look again; -2: it is gone
    int64_t modified_ms
    Py_ssize_t start


cdef void look(int folder, const char* name, Seen* seen) noexcept nogil:
    cdef status result
    if fstatat(folder, name, &result, AT_SYMLINK_NOFOLLOW):
        seen.size = -2 if errno == ENOENT else -1
        return
    seen.size = result.st_size
    # As Python floors nanoseconds, before 1970 too.
    seen.modified_ms = result.st_mtim.tv_sec * <int64_t>1000 + result.st_mtim.tv_nsec // 1000000


cdef Py_ssize_t take(int folder, const char* name, char* to, Py_ssize_t room) noexcept nogil:
    """The size of the whole file, which is in ``to``; -1 where that is not so."""
    cdef status result
    cdef Py_ssize_t size = -1
    cdef int descriptor = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if descriptor < 0:
        return -1
    if not fstat(descriptor, &result) and is_file(result.st_mode) and result.st_size <= room:
        size = read(descriptor, to, result.st_size)
        if size != result.st_size:
            size = -1
    close(descriptor)
    return size


def look_at_files(int folder, list names not None):
    """For each name its size and its time of change in milliseconds, no link followed; None for one that is not there.

    OSError for whatever else is wrong is not raised here: then all of it is None.
    """
    cdef Py_ssize_t count = len(names), at
    cdef const char** paths = <const char**>malloc(max(count, 1) * sizeof(char*))
    cdef Seen* seen = <Seen*>malloc(max(count, 1) * sizeof(Seen))
    cdef list answers = []
    try:
        if paths == NULL or seen == NULL:
            raise MemoryError
        for at in range(count):
            paths[at] = PyBytes_AS_STRING(<bytes?>names[at])
        with nogil:
            for at in range(count):
                look(folder, paths[at], seen + at)
        for at in range(count):
            if seen[at].size == -1:
                return None
            answers.append(None if seen[at].size < 0 else (seen[at].size, seen[at].modified_ms))
        return answers
    finally:
        free(paths)
        free(seen)


def read_files(int folder, list names not None, Py_ssize_t longest):
    """The content of each of up to 1,024 files of at most ``longest`` bytes; None for one that is to be read another
    way: it is longer, is no plain file, or is not there."""
    cdef Py_ssize_t count = len(names), at, used = 0
    cdef const char* paths[MOST]
    cdef Seen seen[MOST]
    cdef char* memory
    if count > MOST:
        raise ValueError(f"{count} files are too many for one visit")
    for at in range(count):
        paths[at] = PyBytes_AS_STRING(<bytes?>names[at])
    longest = min(longest, LONGEST)
    memory = <char*>malloc(ROOM)
    if memory == NULL:
        raise MemoryError
    try:
        with nogil:
            for at in range(count):
                seen[at].start = used
                seen[at].size = take(folder, paths[at], memory + used, min(longest, ROOM - used))
                used += max(seen[at].size, 0)
        return [
            PyBytes_FromStringAndSize(memory + seen[at].start, seen[at].size) if seen[at].size >= 0 else None
            for at in range(count)
        ]
    finally:
        free(memory)
