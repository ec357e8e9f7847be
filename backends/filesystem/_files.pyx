# cython: language_level=3
"""Functions that examine or read many files of one folder per call, without the interpreter's lock. If each of the many
system calls released the lock separately, the thread would have to wait for the lock after each call.

If a file is unusual, a function returns None, for that file or as the whole result. The caller then examines the files
one by one, and reports the reason.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.errno cimport ENOENT, errno
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcpy, strlen

from tieredstore.backends.values import ObjectInfo

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    str PyUnicode_Concat(object left, object right)

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
    int AT_SYMLINK_NOFOLLOW, O_RDONLY, O_NOFOLLOW, O_NONBLOCK, O_CLOEXEC, O_DIRECTORY
    int openat(int folder, const char* name, int flags)

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t read(int descriptor, void* to, size_t size)
    int close(int descriptor)

cdef extern from "<dirent.h>" nogil:
    int DT_REG
    struct dirent:
        unsigned char d_type
        char d_name[256]
    ctypedef struct DIR:
        pass
    DIR* fdopendir(int descriptor)
    dirent* readdir(DIR* folder)
    int closedir(DIR* folder)

cdef enum:
    LONGEST = 65536  # size in bytes of the largest file that this module reads
    ROOM = 1048576  # bytes that one call can read
    MOST = 1024  # files that one call can read

cdef int64_t FARTHEST_S = 1 << 52  # the latest modification time reported, some hundred million years after 1970

# The result for one file.
cdef struct Seen:
    int64_t size  # the file's size; -1: the caller must examine the file again; -2: there is no file
    int64_t modified_ms
    Py_ssize_t start


# The names in a folder, each ended by a zero byte.
cdef struct Names:
    char* text
    size_t size, room
    Py_ssize_t count
    bint good


cdef inline bint is_plain(const char* name, Py_ssize_t size) noexcept nogil:
    """Return True for a component of ASCII letters, digits, ``-``, ``_`` and ``.`` that does not begin with a dot. Such
    a component is valid in a key."""
    cdef Py_ssize_t at
    cdef char one
    if not 0 < size < 256 or name[0] == b".":
        return False
    for at in range(size):
        one = name[at]
        if not (b"a" <= one <= b"z" or b"0" <= one <= b"9" or b"A" <= one <= b"Z" or one == b"-" or one == b"_" or one == b"."):
            return False
    return True


cdef void note(Names* names, const char* name, size_t size) noexcept nogil:
    cdef char* larger
    if names.size + size > names.room:
        names.room = 2 * (names.room + size)
        larger = <char*>realloc(names.text, names.room)
        if larger == NULL:
            names.good = False
            return
        names.text = larger
    memcpy(names.text + names.size, name, size)
    names.size += size
    names.count += 1


cdef void note_files(int folder, Names* names) noexcept nogil:
    """Collect all names in the folder. Clear ``good`` on an error, or if an entry might not be a plain file."""
    cdef DIR* opened
    cdef dirent* entry
    cdef int descriptor = openat(folder, b".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if descriptor < 0:
        names.good = False
        return
    opened = fdopendir(descriptor)
    if opened == NULL:
        close(descriptor)
        names.good = False
        return
    while names.good:
        errno = 0
        entry = readdir(opened)
        if entry == NULL:
            names.good = errno == 0
            break
        if entry.d_name[0] == b"." and (entry.d_name[1] == 0 or (entry.d_name[1] == b"." and entry.d_name[2] == 0)):
            continue
        if entry.d_type == DT_REG and is_plain(entry.d_name, strlen(entry.d_name)):
            note(names, entry.d_name, strlen(entry.d_name) + 1)
        else:
            names.good = False
    closedir(opened)


def names_of_files(int folder):
    """Return the names in a folder, in no order; None if the folder may contain something other than plain files."""
    cdef Names names = Names(NULL, 0, 0, 0, True)
    cdef list listed = []
    cdef const char* at
    cdef Py_ssize_t size
    try:
        with nogil:
            note_files(folder, &names)
        if not names.good:
            return None
        at = names.text
        for _ in range(names.count):
            size = strlen(at)
            listed.append(PyUnicode_DecodeASCII(at, size, NULL))
            at += size + 1
        return listed
    finally:
        free(names.text)


cdef int fill_paths(const char** paths, tuple names) except -1:
    """Fill ``paths`` with pointers to the C strings of ``names``, valid while ``names`` exists; raise ValueError for a
    zero byte."""
    cdef Py_ssize_t at, size = 0
    for at in range(len(names)):
        paths[at] = PyUnicode_AsUTF8AndSize(names[at], &size)
        if memchr(paths[at], 0, size) != NULL:
            raise ValueError("embedded null character in a name")
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
    # Round down like Python's nanoseconds, even before 1970.
    seen.modified_ms = result.st_mtim.tv_sec * <int64_t>1000 + result.st_mtim.tv_nsec // 1000000


cdef Py_ssize_t take(int folder, const char* name, char* to, Py_ssize_t room) noexcept nogil:
    """Read the whole file into ``to``, which needs one spare byte; return its size, or -1 on failure.

    Fail also after a signal, or if the file's size changes during the read: the caller then reads the file in another
    way.
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


def look_at_files(int folder, str path not None, list names not None):
    """Return an ``ObjectInfo`` for each name, with ``path`` and name as its key; None for a name without a plain file.

    After an OSError, return None instead of a list.
    """
    cdef tuple held = tuple(names)  # cannot change during the call
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
            if seen[at].size < 0:
                answers.append(None)
            else:
                answers.append(ObjectInfo(PyUnicode_Concat(path, held[at]), seen[at].size, None, seen[at].modified_ms))
        return answers
    finally:
        free(paths)
        free(seen)


def read_files(int folder, Py_ssize_t start, list keys not None, Py_ssize_t longest):
    """Read up to 1,024 files of at most ``longest`` bytes. In each key, the file's name begins at character ``start``.

    Return None for each file that the caller must read in another way, because it is longer, absent or not a plain
    file, or has an unusual name.
    """
    cdef tuple held = tuple(keys)  # cannot change during the call
    cdef Py_ssize_t count = len(held), at, size = 0, used = 0
    cdef const char* paths[MOST]
    cdef Seen seen[MOST]
    cdef char* memory
    if count > MOST:
        raise ValueError(f"{count} files are too many for one visit")
    for at in range(count):
        paths[at] = NULL
        if (<str?>held[at]).isascii():
            paths[at] = PyUnicode_AsUTF8AndSize(held[at], &size) + start
            if not (0 <= start < size and is_plain(paths[at], size - start)):
                paths[at] = NULL
    longest = min(longest, LONGEST)
    memory = <char*>malloc(ROOM + 1)
    if memory == NULL:
        raise MemoryError
    try:
        with nogil:
            for at in range(count):
                seen[at].start = used
                seen[at].size = -1
                if paths[at] != NULL:
                    seen[at].size = take(folder, paths[at], memory + used, min(longest, ROOM - used))
                used += max(seen[at].size, 0)
        return [
            PyBytes_FromStringAndSize(memory + seen[at].start, seen[at].size) if seen[at].size >= 0 else None
            for at in range(count)
        ]
    finally:
        free(memory)
