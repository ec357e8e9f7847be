# cython: language_level=3, boundscheck=False, wraparound=False
"""Messages from the bucket in confluent-kafka's form, made from the columns of a record batch."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uintptr_t

cdef extern from "Python.h":
    int PyObject_GC_IsTracked(object)
    void PyObject_GC_Track(object)
    void PyObject_GC_UnTrack(object)


@cython.freelist(256)
cdef class Message:
    """A record with all methods of ``confluent_kafka.Message``. Only a consumer makes messages."""

    cdef object _topic
    cdef object _key
    cdef object _value
    cdef object _headers
    cdef object _error
    cdef int64_t _offset
    cdef int64_t _timestamp
    cdef int32_t _partition
    cdef int32_t _epoch
    cdef int8_t _timestamp_type

    def __init__(self):
        raise TypeError("only a consumer makes messages")

    cdef void _may_refer(self):
        """Let the garbage collector track this message, because its new value may refer to any object, even to the
        message."""
        if not PyObject_GC_IsTracked(self):
            PyObject_GC_Track(self)

    def topic(self):
        """Return the topic's name."""
        return self._topic

    def partition(self):
        """Return the partition's number."""
        return self._partition

    def offset(self):
        """Return the record's offset."""
        return self._offset

    def key(self):
        """Return the key; None for a null."""
        return self._key

    def value(self):
        """Return the value; None for a null."""
        return self._value

    def deserialized_key(self):
        """Return the same object as ``key()``."""
        return self._key

    def deserialized_value(self):
        """Return the same object as ``value()``."""
        return self._value

    def headers(self):
        """Return the headers in the record's order, as pairs of a name and a value (bytes or None); None without
        headers."""
        return self._headers

    def error(self):
        """Return an event's error; None for a record."""
        return self._error

    def timestamp(self):
        """Return the timestamp type (a constant of confluent_kafka) and the timestamp in milliseconds since 1970."""
        return (self._timestamp_type, self._timestamp)

    def latency(self):
        """Return None: only produced messages have a latency."""
        return None

    def leader_epoch(self):
        """Return the leader epoch of the record's batch; None if the batch has none."""
        return None if self._epoch < 0 else self._epoch

    def delivery_count(self):
        """Return None: only messages of share groups have a delivery count."""
        return None

    def set_headers(self, value):
        """Replace the headers."""
        self._headers = value
        self._may_refer()

    def set_key(self, value):
        """Replace the key, for example by the deserialized key."""
        self._key = value
        self._may_refer()

    def set_value(self, value):
        """Replace the value, for example by the deserialized value."""
        self._value = value
        self._may_refer()

    def set_topic(self, value):
        """Replace the topic."""
        self._topic = value
        self._may_refer()

    def set_error(self, value):
        """Replace the error."""
        self._error = value
        self._may_refer()

    def __len__(self):
        return 0 if self._value is None else len(self._value)


def event(topic, int partition, int64_t offset, error):
    """Make a message for an event instead of a record, for example the end of a partition."""
    cdef Message message = Message.__new__(Message)
    message._topic = topic
    message._partition = partition
    message._offset = offset
    message._error = error
    # Use the error's text as the value, like confluent-kafka.
    message._value = error.str().encode()
    message._timestamp = -1
    message._timestamp_type = 0
    message._epoch = -1
    return message


cdef struct Binary:
    const uint8_t* valid
    const int32_t* ends
    const char* data
    Py_ssize_t first


cdef inline object _bytes(const Binary* column, Py_ssize_t row):
    cdef Py_ssize_t at = row + column.first
    if column.valid != NULL and not (column.valid[at >> 3] >> (at & 7)) & 1:
        return None
    return PyBytes_FromStringAndSize(column.data + column.ends[at], column.ends[at + 1] - column.ends[at])


cdef const void* _address(buffer):
    return NULL if buffer is None else <const void*><uintptr_t>buffer.address


cdef Binary _binary(array):
    cdef Binary column
    buffers = array.buffers()
    column.valid = <const uint8_t*>_address(buffers[0])
    column.ends = <const int32_t*>_address(buffers[1])
    column.data = <const char*>_address(buffers[2])
    column.first = array.offset
    return column


cdef class BatchMessages:
    """The messages of one record batch. The batch must have all columns, in the order of ``COLUMNS``."""

    cdef object _batch, _topic, _children
    cdef int32_t _partition
    cdef Py_ssize_t _rows
    cdef Binary _key, _value, _header_key, _header_value
    cdef const uint8_t* _headers_valid
    cdef const int32_t* _headers_ends
    cdef Py_ssize_t _headers_first
    cdef const int64_t* _offsets
    cdef const int64_t* _timestamps
    cdef const int8_t* _timestamp_types
    cdef const int32_t* _epochs

    def __init__(self, topic, int partition, batch):
        self._batch = batch  # owns the buffers that the pointers refer to
        self._topic = topic
        self._partition = partition
        self._rows = batch.num_rows
        self._key = _binary(batch.column(0))
        self._value = _binary(batch.column(1))
        headers = batch.column(2)
        buffers = headers.buffers()
        self._headers_valid = <const uint8_t*>_address(buffers[0])
        self._headers_ends = <const int32_t*>_address(buffers[1])
        self._headers_first = headers.offset
        pairs = headers.values
        self._children = (pairs.field(0), pairs.field(1))
        self._header_key = _binary(self._children[0])
        self._header_value = _binary(self._children[1])
        self._offsets = <const int64_t*>_address(batch.column(3).buffers()[1]) + <Py_ssize_t>batch.column(3).offset
        self._timestamps = <const int64_t*>_address(batch.column(4).buffers()[1]) + <Py_ssize_t>batch.column(4).offset
        self._timestamp_types = <const int8_t*>_address(batch.column(5).buffers()[1]) + <Py_ssize_t>batch.column(5).offset
        self._epochs = <const int32_t*>_address(batch.column(6).buffers()[1]) + <Py_ssize_t>batch.column(6).offset

    def __len__(self):
        return self._rows

    def offset(self, Py_ssize_t row):
        """Return the offset of a row."""
        if not 0 <= row < self._rows:
            raise IndexError(row)
        return self._offsets[row]

    def epoch(self, Py_ssize_t row):
        """Return the leader epoch of a row; -1 for none."""
        if not 0 <= row < self._rows:
            raise IndexError(row)
        return self._epochs[row]

    def timestamp(self, Py_ssize_t row):
        """Return the timestamp of a row in milliseconds."""
        if not 0 <= row < self._rows:
            raise IndexError(row)
        return self._timestamps[row]

    def take(self, Py_ssize_t start, Py_ssize_t stop):
        """Return the messages of the rows from ``start`` up to ``stop`` (exclusive)."""
        if not 0 <= start <= stop <= self._rows:
            raise IndexError(start, stop)
        cdef Py_ssize_t row
        cdef list messages = []
        for row in range(start, stop):
            messages.append(self._message(row))
        return messages

    cdef Message _message(self, Py_ssize_t row):
        cdef Message message = Message.__new__(Message)
        message._topic = self._topic
        message._partition = self._partition
        message._offset = self._offsets[row]
        message._timestamp = self._timestamps[row]
        # Kafka numbers the types of timestamps from -1 (none), librdkafka from 0.
        message._timestamp_type = self._timestamp_types[row] + 1
        message._epoch = self._epochs[row]
        message._key = _bytes(&self._key, row)
        message._value = _bytes(&self._value, row)
        message._headers = self._headers(row)
        # A message without headers has only bytes and numbers, which cannot form a cycle. If the garbage collector
        # tracked such messages, its repeated checks would cost five times as much as making the messages.
        if message._headers is None:
            PyObject_GC_UnTrack(message)
        return message

    cdef object _headers(self, Py_ssize_t row):
        cdef Py_ssize_t at = row + self._headers_first
        if self._headers_valid != NULL and not (self._headers_valid[at >> 3] >> (at & 7)) & 1:
            return None
        if self._headers_ends == NULL:
            return None
        cdef Py_ssize_t pair, key
        cdef list headers = []
        for pair in range(self._headers_ends[at], self._headers_ends[at + 1]):
            key = pair + self._header_key.first
            name = PyUnicode_DecodeUTF8(
                self._header_key.data + self._header_key.ends[key],
                self._header_key.ends[key + 1] - self._header_key.ends[key],
                NULL,
            )
            headers.append((name, _bytes(&self._header_value, pair)))
        return headers or None
