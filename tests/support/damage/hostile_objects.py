"""Objects deleted, truncated, swapped or misplaced; false indexes and records."""

from __future__ import annotations

import gzip
import struct
from typing import Final

from crc32c import crc32c

from tests.support.damage.hostile_buckets import AS_STORED, SAME, Case, Change, HostileBucket, content

_WINDOW: Final = ("victim", "--from", "120")
"""Arguments that make ``cat`` read a part of the log, which it finds by the offset index."""

_CUT: Final = "is shorter than its manifest says|damaged|has \\d+ bytes where"


def _lost(suffix: str) -> Change:
    return lambda bucket: bucket.path(suffix).unlink()


def _swap(one: str, other: str) -> Change:
    def change(bucket: HostileBucket) -> None:
        first, second = bucket.path(one).read_bytes(), bucket.path(other).read_bytes()
        bucket.path(one).write_bytes(second)
        bucket.path(other).write_bytes(first)

    return change


def _honest(suffix: str) -> Change:
    """Return a change that replaces the victim's object by the honest segment's."""

    def change(bucket: HostileBucket) -> None:
        bucket.path(suffix).write_bytes(bucket.path(suffix, "honest").read_bytes())

    return change


OBJECTS: Final = [
    Case("no log", _lost("log"), (0, 4, 4, 3), "no .log|missing"),
    Case("no indexes", _lost("indexes"), (0, 4, 0, 3), "no .indexes|missing"),
    Case("no manifest", _lost("rsm-manifest"), (0, 3, 3, 3), "no .rsm-manifest|unfinished"),
    Case("a log of no bytes", content("log", lambda _: b""), (0, 4, 4, 4), _CUT),
    Case("a log cut by a byte", content("log", lambda raw: raw[:-1]), (0, 4, 4, 4), _CUT),
    Case("a log cut in half", content("log", lambda raw: raw[: len(raw) // 2]), (0, 4, 4, 4), _CUT),
    Case("a log with a byte more", content("log", lambda raw: raw + b"x"), (0, 4, 0, 0), "bytes where its manifest"),
    Case("a zstd log cut in half", content("log", lambda raw: raw[: len(raw) // 2]), (0, 4, 4, 4), _CUT, "zstd"),
    Case("a zstd log of zeros", content("log", lambda raw: bytes(len(raw))), (0, 0, 4, 4), "is damaged", "zstd"),
    Case("an encrypted log of zeros", content("log", lambda raw: bytes(len(raw))), (0, 0, 4, 4), "is damaged", "enc"),
    Case("the honest log", _honest("log"), (0, 4, 4, 4), _CUT, "zstd"),
    Case("the honest log, encrypted", _honest("log"), (0, 0, 4, 4), "is damaged", "enc"),
    Case("the honest indexes, encrypted", _honest("indexes"), (0, 0, 0, 4), "decrypt", "enc", _WINDOW),
    Case("the honest manifest", _honest("rsm-manifest"), (4, 4, 4, 3), "manifest of another segment"),
    Case("log and indexes swapped", _swap("log", "indexes"), (0, 4, 4, 4), ""),
    Case("log and manifest swapped", _swap("log", "rsm-manifest"), (4, 4, 4, 3), "is not JSON"),
    Case("indexes of no bytes", content("indexes", lambda _: b""), (0, 4, 0, 4), "shorter", "plain", _WINDOW),
    Case("indexes cut by a byte", content("indexes", lambda raw: raw[:-1]), (0, 4, 0, 4), "shorter", "plain", _WINDOW),
    Case(
        "indexes with more", content("indexes", lambda raw: raw + b"x" * 99), (0, 4, 0, 0), "bytes where its manifest"
    ),
]


def _index(name: str, raw: bytes) -> Change:
    """Return a change that fills one index with ``raw``, repeated or cut to the index's size."""

    def change(bucket: HostileBucket) -> None:
        entry = bucket.manifest()["segmentIndexes"][name]
        bucket.patch("indexes", entry["position"], (raw * (entry["size"] // max(len(raw), 1) + 1))[: entry["size"]])

    return change


INDEXES: Final = [
    Case(
        "an offset index that descends",
        _index("offset", struct.pack(">iiii", 90, 90, 10, 10)),
        (0, 0, 0, 4),
        "",
        "plain",
        _WINDOW,
    ),
    Case(
        "an offset index beyond the log",
        _index("offset", struct.pack(">ii", 2**31 - 1, 2**31 - 1)),
        (0, 0, 0, 4),
        "",
        "plain",
        _WINDOW,
    ),
    Case("an offset index of negative numbers", _index("offset", b"\xff"), (0, 0, 0, 4), cat=_WINDOW),
    Case("a time index of negative numbers", _index("timestamp", b"\xff"), SAME, cat=_WINDOW),
    Case("a time index of zeros", _index("timestamp", b"\0"), SAME, cat=_WINDOW),
    Case("a snapshot of zeros", _index("producerSnapshot", b"\0"), (0, 0, 0, 4), cat=_WINDOW),
    Case("epochs that are no numbers", _index("leaderEpoch", b"x"), SAME, cat=_WINDOW),
    Case("epochs a billion of them", _index("leaderEpoch", b"0\n999999999\n0 0\n"), SAME, cat=_WINDOW),
    Case("epochs of many digits", _index("leaderEpoch", b"9"), SAME, cat=_WINDOW),
]


def _batch(position: int, raw: bytes) -> Change:
    """Return a change of bytes in the first batch. Positions: base offset 0, length 8, magic 16, CRC 17, attributes 21,
    record count 57.
    """
    return lambda bucket: bucket.patch("log", position, raw)


def _resealed(position: int, raw: bytes) -> Change:
    """Return a change like :func:`_batch` that also corrects the batch's CRC."""

    def change(bucket: HostileBucket) -> None:
        bucket.patch("log", position, raw)
        log = bucket.path("log").read_bytes()
        (length,) = struct.unpack(">i", log[8:12])
        bucket.patch("log", 17, struct.pack(">I", crc32c(log[21 : 12 + length])))

    return change


RECORDS: Final = [
    Case("a batch of -1 bytes", _batch(8, struct.pack(">i", -1)), AS_STORED, "batch"),
    Case("a batch of 2^31-1 bytes", _batch(8, struct.pack(">i", 2**31 - 1)), AS_STORED, "batch"),
    Case("a batch of 0 bytes", _batch(8, struct.pack(">i", 0)), AS_STORED, "batch"),
    Case("a batch of another magic", _batch(16, b"\x09"), AS_STORED, "magic|batch"),
    Case("a batch with another CRC", _batch(17, b"\0\0\0\0"), AS_STORED, "CRC|batch"),
    Case("a batch of 2^31-1 records", _resealed(57, struct.pack(">i", 2**31 - 1)), AS_STORED, ""),
    Case("a batch of -1 records", _resealed(57, struct.pack(">i", -1)), AS_STORED, ""),
    Case("a batch that ends at 2^31-1", _resealed(23, struct.pack(">i", 2**31 - 1)), AS_STORED, ""),
    Case("a batch of an unknown codec", _resealed(22, b"\x07"), AS_STORED, ""),
    Case("a batch said to be gzip", _resealed(22, b"\x01"), AS_STORED, ""),
    Case("a batch said to be zstd", _resealed(22, b"\x04"), AS_STORED, ""),
    Case("a batch from offset -1", _batch(0, b"\xff" * 8), AS_STORED, ""),
    Case("a batch from offset 2^63-1", _batch(0, b"\x7f" + b"\xff" * 7), AS_STORED, ""),
    Case("a record of 2^31-1 bytes", _resealed(61, b"\xfe\xff\xff\xff\x0f"), AS_STORED, ""),
    Case("a record of endless length", _resealed(61, b"\xff" * 12), AS_STORED, ""),
    Case(
        "a log of nothing but zeros", content("log", lambda raw: bytes(len(raw))), (0, 0, 0, 4), "zeros from offset 0"
    ),
    Case("a log of HTML", content("log", lambda raw: (b"<html>" * len(raw))[: len(raw)]), AS_STORED, ""),
]


def _bomb(bucket: HostileBucket) -> None:
    """Replace the first batch by a gzip batch that expands to 256 MiB of zeros."""
    log = bytearray(bucket.path("log").read_bytes())
    packed = gzip.compress(bytes(256 << 20), 9)
    if len(packed) > len(log) - 61:
        packed = packed[: len(log) - 61]
    body = log[:61] + packed
    body = body[: len(log)] + bytes(max(0, len(log) - len(body)))
    struct.pack_into(">i", body, 8, len(body) - 12)
    body[22] = 1
    struct.pack_into(">I", body, 17, crc32c(bytes(body[21:])))
    bucket.path("log").write_bytes(body)


RECORDS.append(Case("a batch that grows to 256 MiB", _bomb, AS_STORED, ""))

CASES: Final = [*OBJECTS, *INDEXES, *RECORDS]
