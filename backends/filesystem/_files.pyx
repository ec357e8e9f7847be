# cython: language_level=3
"""Many files of one folder in one visit to the system, without the interpreter's lock: what a planning spends its time
on are system calls, and a thread that gives up the lock for each of them waits for it as often.

What is not as it nearly always is gives None or nothing here: whoever asked looks again, one by one, and says what it
is.
"""

from cpython.bytes cimport PyBytes_AsStringAndSize, PyBytes_FromStringAndSize
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

cdef int64_t FARTHEST_S = 1 << 52  # from 1970 that a time of change is told, some hundred million years

# What became of one file.
cdef struct Seen:
    int64_t size  # -1: look again; -2: no file is there
    int64_t modified_ms
    Py_ssize_t start


cdef int fill_paths(const char** paths, tuple names) except -1:
    """The texts of ``names``, good as long as these are held; ValueError for one that is not what C takes it for."""
    cdef Py_ssize_t at
    for at in range(len(names)):
        PyBytes_AsStringAndSize(<bytes?>names[at], <char**>(paths + at), NULL)
    return 0


cdef void look(int folder, const char* name, Seen* seen) noexcept nogil:
    cdef status result
    if fstatat(folder, name, &result, AT_SYMLINK_NOFOLLOW):
        seen.size = -2 if errno == ENOENT else -1
        return
    if not is_file(result.st_mode):
        seen.size = -2
        return
    if result.st_size < 0 or not -FARTHEST_S < result.st_mtim.tv_sec < FARTHEST_S:
        seen.size = -1
        return
    seen.size = result.st_size
    # As Python floors nanoseconds, before 1970 too.
    seen.modified_ms = result.st_mtim.tv_sec * <int64_t>1000 + result.st_mtim.tv_nsec // 1000000


cdef Py_ssize_t take(int folder, const char* name, char* to, Py_ssize_t room) noexcept nogil:
    """The size of the whole file, which is in ``to``; -1 where that is not so. One byte more may be written there.

    A signal, or a file that was cut short or grew since it was looked at, is a reason to look again.
    """
    cdef status result
    cdef Py_ssize_t size = -1
    cdef int descriptor = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    if descriptor < 0:
        return -1
    if not fstat(descriptor, &result) and is_file(result.st_mode) and 0 <= result.st_size <= room:
        size = read(descriptor, to, <size_t>result.st_size + 1)
        if size != result.st_size:
            size = -1
    close(descriptor)
    return size


def look_at_files(int folder, list names not None):
    """For each name its size and its time of change in milliseconds; None for one where no plain file is.

    OSError for whatever else is wrong is not raised here: then all of it is None.
    """
    cdef tuple held = tuple(names)  # which nobody changes meanwhile
    cdef Py_ssize_t count = len(held), at
    cdef const char** paths = <const char**>malloc(max(count, 1) * sizeof(char*))
    cdef Seen* seen = <Seen*>malloc(max(count, 1) * sizeof(Seen))
    cdef list answers = []
    try:
        if paths == NULL or seen == NULL:
            raise MemoryError
        fill_paths(paths, held)
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
    cdef tuple held = tuple(names)  # which nobody changes meanwhile
    cdef Py_ssize_t count = len(held), at, used = 0
    cdef const char* paths[MOST]
    cdef Seen seen[MOST]
    cdef char* memory
    if count > MOST:
        raise ValueError(f"{count} files are too many for one visit")
    fill_paths(paths, held)
    longest = min(longest, LONGEST)
    memory = <char*>malloc(ROOM + 1)
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
