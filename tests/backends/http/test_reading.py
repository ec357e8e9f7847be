"""The answer to a range request: accepted and rejected forms."""

from __future__ import annotations

import io

import pytest
import urllib3.exceptions
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.backends.http.body import HttpAnswer
from tieredstore.backends.http.ranges import answered_size, is_whole, range_header
from tieredstore.backends.http.sockets import PIECE_BYTES, within
from tieredstore.errors import RangeNotSatisfiableError, StoreError, StoreUnavailableError
from tieredstore.process.deadline import Deadline


class Wire:
    """A connection that returns its bytes in pieces of given sizes."""

    def __init__(self, data: bytes, sizes: list[int] | None = None, error: Exception | None = None) -> None:
        self._data = io.BytesIO(data)
        self._sizes = list(sizes or [])
        self._error = error
        self.released = False

    def readinto(self, buffer: memoryview, /) -> int:
        most = len(buffer)
        assert 0 < most <= PIECE_BYTES
        piece = self._data.read(min(most, self._sizes.pop(0)) if self._sizes else most)
        if not piece and self._error is not None:
            raise self._error
        buffer[: len(piece)] = piece
        return len(piece)

    def read(self, amt: int | None = None, /) -> bytes:
        assert amt == 1, "a body without end must not fill the memory"
        return self._data.read(amt)

    def release_conn(self) -> None:
        self.released = True


def answer_of(wire: Wire, size: int) -> HttpAnswer:
    return HttpAnswer(size, wire, "object")


sizes = st.lists(st.integers(1, 50), max_size=30)


@given(st.binary(max_size=300), sizes)
def test_exactly_the_bytes_are_read_in_whatever_pieces_they_come(body: bytes, pieces: list[int]) -> None:
    wire = Wire(body, pieces)
    assert answer_of(wire, len(body)).read() == body
    assert wire.released
    buffer = bytearray(b"-" * (len(body) + 2))
    answer_of(Wire(body, pieces), len(body)).fill(memoryview(buffer)[1:-1])
    assert buffer == b"-" + body + b"-"


def test_a_body_with_surplus_bytes_is_refused() -> None:
    wire = Wire(b"abc")
    with pytest.raises(StoreError, match="more bytes than it announced"):
        answer_of(wire, 2).read()
    assert not wire.released


@given(st.binary(max_size=100), st.integers(1, 100), sizes)
def test_a_body_that_ends_early_is_never_short(body: bytes, missing: int, pieces: list[int]) -> None:
    wire = Wire(body, pieces)
    with pytest.raises(StoreUnavailableError, match=f"after {len(body)} of {len(body) + missing} bytes"):
        answer_of(wire, len(body) + missing).read()
    assert not wire.released


@pytest.mark.parametrize(
    "error", [urllib3.exceptions.ProtocolError("cut"), TimeoutError("late"), OSError(104, "reset")]
)
def test_a_failing_connection_is_a_passing_failure(error: Exception) -> None:
    with pytest.raises(StoreUnavailableError):
        answer_of(Wire(b"abc", error=error), 10).read()


def test_the_deadline_holds_between_pieces() -> None:
    clock = iter(range(1000))
    with within(Deadline(5.0, lambda: next(clock))), pytest.raises(StoreUnavailableError, match="deadline"):
        answer_of(Wire(b"x" * 100, [1] * 100), 100).read()


def served(body: bytes, start: int, stop: int | None) -> tuple[dict[str, str], int] | None:
    """Return the headers and size of a correct server's answer, or None for 416."""
    size = len(body)
    if start == 0 and stop is None:
        return {"Content-Length": str(size)}, size
    end = size if stop is None else min(stop, size)
    if start >= size:
        return None
    return {"Content-Length": str(end - start), "Content-Range": f"bytes {start}-{end - 1}/{size}"}, end - start


@given(st.binary(max_size=30), st.integers(0, 40), st.none() | st.integers(1, 40))
def test_a_right_answer_is_taken_and_one_of_a_shorter_object_is_not(
    body: bytes, start: int, length: int | None
) -> None:
    stop = None if length is None else start + length
    answer = served(body, start, stop)
    if answer is None:
        return
    headers, size = answer
    if stop is not None and stop > len(body):
        with pytest.raises(RangeNotSatisfiableError, match=f"the object has {len(body)} bytes"):
            answered_size("object", start, stop, headers)
    else:
        assert answered_size("object", start, stop, headers) == size
        assert is_whole(headers) == (size == len(body))


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 50), st.integers(0, 50))
def test_an_answer_for_another_range_is_refused(start: int, length: int, first: int, size: int) -> None:
    stop = start + length
    headers = {"Content-Length": str(size), "Content-Range": f"bytes {first}-{first + size - 1}/200"}
    if size == 0 and first != 0:
        return
    try:
        taken = answered_size("object", start, stop, headers)
    except StoreError:
        assert (first, first + size) != (start, stop)
    else:
        assert (first, first + size, taken) == (start, stop, length)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Length": ""},
        {"Content-Length": "-1"},
        {"Content-Length": "1" * 30},
        {"Content-Length": "x"},
        {"Content-Length": "10", "Content-Range": ""},
        {"Content-Length": "10", "Content-Range": "bytes 0-9"},
        {"Content-Length": "10", "Content-Range": "bytes 0-9/*"},
        {"Content-Length": "10", "Content-Range": "bytes 0-8/10"},
        {"Content-Length": "10", "Content-Range": "items 0-9/10"},
        {"Content-Length": "10", "Content-Range": f"bytes 0-{'9' * 40}/10"},
        {"Content-Length": "10", "Content-Range": "bytes 9-0/10"},
    ],
)
def test_headers_that_do_not_hold_together_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(StoreError):
        answered_size("object", 0, 10, headers)


def test_a_whole_answer_to_a_request_for_a_range_is_refused() -> None:
    with pytest.raises(StoreError, match="sent bytes from 0"):
        answered_size("object", 5, 10, {"Content-Length": "20"})
    with pytest.raises(StoreError, match="sent bytes 0:20"):
        answered_size("object", 0, 10, {"Content-Length": "20"})


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, None, {}), (5, None, {"Range": "bytes=5-"}), (0, 1, {"Range": "bytes=0-0"}), (5, 9, {"Range": "bytes=5-8"})],
)
def test_ranges_are_asked_for_with_inclusive_ends(start: int, stop: int | None, expected: dict[str, str]) -> None:
    assert range_header(start, stop) == expected


# Headers in botocore's form


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_only_the_bytes_that_were_asked_for_are_taken(size: int, start: int, length: int) -> None:
    stop = start + length + 1
    end = min(size, stop)
    if end <= start:
        return
    headers = {"content-range": f"bytes {start}-{end - 1}/{size}", "content-length": str(end - start)}
    if stop <= size:
        assert answered_size("key", start, stop, headers) == length + 1
    else:
        with pytest.raises(RangeNotSatisfiableError):
            answered_size("key", start, stop, headers)


@pytest.mark.parametrize(
    ("start", "stop", "headers", "error"),
    [
        (2, 4, {"content-length": "10"}, StoreError),
        (0, 4, {"content-length": "10"}, StoreError),
        (0, 4, {"content-length": "0"}, RangeNotSatisfiableError),
        (2, 4, {"content-length": "2", "content-range": "bytes 1-2/10"}, StoreError),
        (2, 4, {"content-length": "3", "content-range": "bytes 2-4/10"}, StoreError),
        (2, 4, {"content-length": "9", "content-range": "bytes 2-3/10"}, StoreError),
        (2, 4, {"content-length": "2", "content-range": "bytes 2-3"}, StoreError),
        (2, 4, {"content-length": "2", "content-range": f"bytes 2-{'9' * 99}/10"}, StoreError),
        (2, 4, {"content-range": "bytes 2-3/10"}, StoreError),
        (2, 4, {"content-length": "-2", "content-range": "bytes 2-3/10"}, StoreError),
        (5, None, {"content-length": "5"}, StoreError),
        (5, None, {"content-length": "0", "content-range": "bytes 5-4/5"}, RangeNotSatisfiableError),
        (0, None, {}, StoreError),
    ],
)
def test_an_answer_that_is_not_what_was_asked_is_refused(
    start: int, stop: int | None, headers: dict[str, str], error: type[StoreError]
) -> None:
    with pytest.raises(error) as caught:
        answered_size("key", start, stop, headers)
    assert type(caught.value) is error
