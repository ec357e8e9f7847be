"""Records that MemQ's writer would silently corrupt are refused. The example in the docs of the format matches byte for
byte.
"""

from __future__ import annotations

import threading

import pytest

from tests.support.pubsub.memq_batches import RecordFields, build_batch, message_of, rows_of
from tieredstore.errors import InvalidRangeError
from tieredstore.pubsub.errors import InvalidRecordError
from tieredstore.pubsub.format._writing import BodyWriter
from tieredstore.pubsub.format.messages import Compression, ProducerRequest, seal_body, seal_message


def test_the_example_of_the_formats_page() -> None:
    request = ProducerRequest(bytes([127, 0, 0, 1]), 0x0123, 0)
    batch = build_batch([message_of([(b"v", b"k", None, b"\0\0\0\0\0\0\0\7", 1_700_000_000_000)], request=request)])
    assert batch.hex() == (
        "00000010000000010000000000000014000000470028006400150" + "47f00000100000000000001230000000000000000"
        + batch[47:51].hex() + "00000000010000001f"
        + "00130000018bcfe56800080000000000000007000000000001" + "6b0000000176"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ((None, None, None, None, 0), "value is None"),
        ((b"", None, None, bytes(256), 0), "message id has 256 bytes"),
        ((b"", None, [("h", bytes(40_000))], None, 0), "has 40000 bytes"),
        ((b"", None, [("h" * 32_768, b"")], None, 0), "has 32768 bytes"),
        ((b"", None, [("a", bytes(20_000)), ("b", bytes(20_000))], None, 0), "headers and message id take"),
        ((b"", None, [("a", bytes(32_500))], bytes(255), 0), "headers and message id take"),
        ((b"", None, [("a", b""), ("a", b"")], None, 0), "two headers of the same name"),
        ((b"", None, [("a", None)], None, 0), "is not a name"),
        ((b"", None, [(b"a", b"")], None, 0), "is not a name"),
        ((b"", None, {"a": b""}, None, 0), "is not a name"),
        ((b"", None, [("\ud800", b"")], None, 0), "lone surrogate"),
    ],
)
def test_what_memqs_readers_would_read_wrong_is_refused(record: RecordFields, sentence: str) -> None:
    body = BodyWriter(1 << 20)
    with pytest.raises(InvalidRecordError, match=sentence):
        body.take(*record)
    assert (body.count, len(body)) == (0, 0)


def test_the_largest_that_fit_come_back() -> None:
    records: list[RecordFields] = [
        (b"", None, None, bytes(255), 0),
        (b"v", b"k", [("h", bytes(32_767 - 11 - 5))], None, 1),
        (b"v", b"k", [("h" * (32_767 - 11 - 4), b"")], None, 1),
    ]
    rows = rows_of(build_batch([message_of(records, Compression.ZSTD)]))
    assert [len(row["message_id"] or b"") for row in rows] == [255, 0, 0]
    assert [len(row["headers"][0]["value"]) for row in rows[1:]] == [32_751, 0]


def test_a_full_body_takes_no_more_and_loses_nothing() -> None:
    body = BodyWriter(100)
    assert body.take(bytes(60), None, None, None, 0) == 0
    assert body.take(b"", None, None, None, 0) == -1
    assert (body.count, len(body)) == (1, 81)


def test_nothing_is_appended_to_bytes_that_are_in_use() -> None:
    body = BodyWriter(1000)
    body.take(b"v", None, None, None, 0)
    with memoryview(body) as view:
        assert len(view) == 22
        with pytest.raises(BufferError):
            body.take(b"v", None, None, None, 0)
    assert body.take(b"v", None, None, None, 0) == 1


def test_a_batch_has_messages() -> None:
    with pytest.raises(InvalidRangeError, match="0 Messages"):
        build_batch([])


def test_threads_compress_side_by_side() -> None:
    record: RecordFields = (bytes(1000), None, None, None, 0)
    sealed: list[bytes] = []

    def seal() -> None:
        sealed.extend(message_of([record] * 50, Compression.ZSTD) for _ in range(20))

    threads = [threading.Thread(target=seal) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(sealed)) == 1


def test_a_message_that_is_stored_as_it_is_is_the_one_that_a_copy_would_be() -> None:
    for address, count in ((b"\x7f\0\0\1", 3), (bytes(127), 2000), (b"", 0)):
        request = ProducerRequest(address, 1, 2)
        body, copied = BodyWriter(1 << 20), BodyWriter(1 << 20)
        for number in range(count):
            for each in (body, copied):
                assert each.take(b"%d" % number * 60, b"k", None, None, number) == number
        message = seal_body(body, request, Compression.NONE)
        assert message == seal_message(copied, count, request, Compression.NONE)
        with pytest.raises(BufferError, match="closed"):
            body.take(b"late", None, None, None, 0)
        with pytest.raises(BufferError, match="already has its header"):
            body.add_header(b"another")


def test_memory_of_messages_is_used_again_and_what_somebody_still_reads_is_not() -> None:
    kept: list[tuple[bytes, memoryview]] = []
    for turn in range(100):
        body = BodyWriter((1 << 20) + turn // 50)  # the size changes half way
        value = bytes([turn]) * 100_000
        while body.take(value, None, None, None, turn) >= 0:
            pass
        with memoryview(body) as view:
            expected = bytes(view)
        if turn % 7 == 0:
            kept.append((expected, memoryview(body)))
    assert all(view == expected for expected, view in kept)
