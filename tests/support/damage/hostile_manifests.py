"""Manifests made to exhaust, mislead or break their reader."""

from __future__ import annotations

import base64
import json
from typing import Final

import zstandard

from tests.support.damage.hostile_buckets import (
    CHUNK_SIZE,
    REFUSED,
    SAME,
    Case,
    Change,
    Codes,
    HostileBucket,
    content,
    field,
    text,
    without,
)
from tieredstore.format.chunk_index import encode_chunk_sizes, pack_chunk_sizes
from tieredstore.format.manifest import MAX_MANIFEST_SIZE
from tieredstore.model import Uuid

_SIZE_FIELD: Final = f'"originalChunkSize":{CHUNK_SIZE}'
_FIELDS: Final = "the manifest's field "


def _number(name: str, written: str, codes: Codes = REFUSED, words: str = _FIELDS) -> Case:
    return Case(f"chunk size {name}", text(_SIZE_FIELD, f'"originalChunkSize":{written}'), codes, words)


NUMBERS: Final = [
    _number("0", "0", words="originalChunkSize is 0, not within"),
    _number("negative", "-1"),
    _number("2^31", "2147483648"),
    _number("of 400 digits", "9" * 400),
    _number("of 5,000 digits", "9" * 5000, words="a number in it has 5000 digits"),
    _number("infinite", "1e999"),
    _number("of 16 million digits", "9" * 15_000_000 + ".5"),
    _number("NaN", "NaN", words="NaN is not a number"),
    _number("-Infinity", "-Infinity", words="is not a number"),
    _number("a fraction", f"{CHUNK_SIZE}.5", SAME, ""),
    _number("a negative fraction", "-0.5", words="originalChunkSize is 0"),
    _number("a text", f'"{CHUNK_SIZE}"', SAME, ""),
    _number("a text of other digits", '"٨١٩٢"'),
    _number("hexadecimal", '"0x2000"'),
    _number("true", "true"),
    _number("null", "null"),
    _number("a list", "[8192]"),
    _number("an object", '{"a":8192}'),
    _number("another", "8191", words="it must equal originalChunkSize"),
    Case("file size 0", field("chunkIndex.originalFileSize", 0), REFUSED, "by the other sizes it must be 0"),
    Case("file size -1", field("chunkIndex.originalFileSize", -1), REFUSED, _FIELDS),
    Case("file size 2^31-1", field("chunkIndex.originalFileSize", 2**31 - 1), REFUSED, "chunkIndex states 262144"),
    Case(
        "file size of a bit more",
        field("chunkIndex.originalFileSize", 30_000),
        REFUSED,
        "by the other sizes it must be",
    ),
]


def _fixed(chunk_size: int, file_size: int | None = None) -> Change:
    """Return a change that sets a consistent chunk index of type "fixed", by default with the log's size."""

    def change(bucket: HostileBucket) -> None:
        size = bucket.path("log").stat().st_size if file_size is None else file_size
        index = {
            "type": "fixed",
            "originalChunkSize": chunk_size,
            "originalFileSize": size,
            "transformedChunkSize": chunk_size,
            "finalTransformedChunkSize": size % chunk_size or chunk_size,
        }
        field("chunkIndex", index)(bucket)

    return change


def _listed(sizes: bytes, chunk_size: int = CHUNK_SIZE, file_size: int | None = None) -> Change:
    """Return a change that sets a compressed segment's list of chunk sizes to this packed zstd frame."""

    def change(bucket: HostileBucket) -> None:
        index = bucket.manifest()["chunkIndex"]
        index |= {"originalChunkSize": chunk_size, "transformedChunks": base64.b64encode(sizes).decode()}
        if file_size is not None:
            index["originalFileSize"] = file_size
        field("chunkIndex", index)(bucket)

    return change


def _ten_million_chunks(*of_log: int) -> Change:
    """Return a change that sets a list of ten million chunks. Packing it is slow, so only the change does it."""

    def change(bucket: HostileBucket) -> None:
        _listed(pack_chunk_sizes([1] * 10_000_000), *of_log)(bucket)

    return change


def _frame(binary: str) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes.fromhex(binary))


def _claiming(size: int) -> bytes:
    """Return a zstd frame without content whose header claims this content size."""
    return bytes.fromhex("28b52ffde0") + size.to_bytes(8, "little") + bytes.fromhex("010000")


def _list_of_chunks(name: str, frame: bytes, words: str) -> Case:
    return Case(f"list of chunks {name}", _listed(frame), REFUSED, words, "zstd")


_GOOD_FRAME: Final = pack_chunk_sizes([10, 20, 30])
_PLAIN_FRAME: Final = zstandard.ZstdCompressor(write_content_size=False)
_SIZES: Final = "transformedChunks: the list of chunk sizes"

CHUNKS: Final = [
    Case("chunks of a byte, as many as the log", _fixed(1), SAME, calls_of_a_byte=600),
    Case("chunks of a byte, all that fit 31 bits", _fixed(1, 2**31 - 1), REFUSED, "states 2147483647 chunks"),
    Case("chunks of a byte, one too many", _fixed(1, 65_537), REFUSED, "states 65537 chunks"),
    Case("a chunk of 2 GiB", _fixed(2**31 - 1, 2**31 - 1), (0, 4, 4, 4), "shorter than its manifest|is damaged"),
    Case("chunks of 1 KiB, 2 GiB of them", _fixed(1024, 2**31 - 1), REFUSED, "states 2097152 chunks"),
    Case(
        "a list of ten million chunks",
        _ten_million_chunks(1, 10_000_000),
        REFUSED,
        "states 10000000 chunks",
        "zstd",
    ),
    Case(
        "a list of ten million chunks for a small log",
        _ten_million_chunks(),
        REFUSED,
        "transformedChunks lists 10000000 chunks, but",
        "zstd",
    ),
    _list_of_chunks("of 2 GiB each", pack_chunk_sizes([2**31 - 1] * 3), "it must have 1 to"),
    _list_of_chunks("with too few", pack_chunk_sizes([100]), "lists 1 chunks, but"),
    _list_of_chunks("with none", pack_chunk_sizes([]), "lists 0 chunks, but"),
    _list_of_chunks("with an empty chunk", pack_chunk_sizes([0, 9, 9, 9]), "it must have 1 to|lists 4 chunks"),
    _list_of_chunks(
        "without a size", _PLAIN_FRAME.compress(encode_chunk_sizes([1, 2])), "states no size, or more than"
    ),
    _list_of_chunks("that claims 2^62 bytes", _claiming(2**62), "states no size, or more than"),
    _list_of_chunks("that claims 10 MiB", _claiming(10 << 20), "zstd frame"),
    _list_of_chunks("cut short", _GOOD_FRAME[:-3], "zstd frame"),
    _list_of_chunks("in two frames", _GOOD_FRAME + _GOOD_FRAME, "zstd frame"),
    _list_of_chunks("that is no zstd", b"not zstd", "zstd frame"),
    _list_of_chunks("of no bytes", b"", "zstd frame"),
    _list_of_chunks("of width 0", _frame("00000002 00000000 00 00000000"), "with 0 bytes for each"),
    _list_of_chunks("of width 127", _frame("00000002 00000000 7f 00000000"), "with 127 bytes for each"),
    _list_of_chunks("of width -1", _frame("00000002 00000000 ff 00000000"), "with -1 bytes for each"),
    _list_of_chunks(
        "from a negative base",
        _frame("00000002 ffffffff 01 00 00000000"),
        f"{_SIZES} states 2 sizes with the minimum -1",
    ),
    _list_of_chunks(
        "of a negative count", _frame("ffffffff 00000000 01 00 00000000"), f"{_SIZES} holds the negative number -1"
    ),
    _list_of_chunks("of 2^31-1 chunks", _frame("7fffffff 00000000 04 00000000 00000000"), "must have 8589934597"),
    _list_of_chunks("with a size above 2^31", _frame("00000002 7fffffff 01 01 00000000"), "above 2147483647"),
    _list_of_chunks("with a byte behind it", _frame("00000002 00000000 01 00 00000000 00"), "must have 14"),
    Case("URL-safe base64", field("chunkIndex.transformedChunks", "KLUv_SAI"), REFUSED, "base64", "zstd"),
    Case("base64 in lines", field("chunkIndex.transformedChunks", "KLUv\n/SAI"), REFUSED, "base64", "zstd"),
    Case("base64 in letters of others", field("chunkIndex.transformedChunks", "КЛУв"), REFUSED, "base64", "zstd"),
    Case("12 MiB of base64", field("chunkIndex.transformedChunks", "A" * (12 << 20)), REFUSED, "zstd frame", "zstd"),
    Case("an index of no type", field("chunkIndex.type", "tree"), REFUSED, "neither 'fixed' nor 'variable'"),
    Case("compressed and fixed", field("compression", True), REFUSED, "compression is true, but"),
    Case("not compressed and variable", field("compression", False), REFUSED, "compression is false, but", "zstd"),
]


def _whole(raw: bytes) -> Change:
    return content("rsm-manifest", lambda _: raw)


def _structure(name: str, raw: bytes, words: str = "the manifest is not JSON") -> Case:
    return Case(f"manifest {name}", _whole(raw), REFUSED, words)


def _beside(name: str, more: bytes, codes: Codes = REFUSED, words: str = "") -> Case:
    """Return a case whose valid manifest has an extra field before all others."""
    return Case(
        f"a field with {name}", content("rsm-manifest", lambda raw: b'{"x":' + more + b"," + raw[1:]), codes, words
    )


_VALUES: Final = "values, but no writer writes more than 100000"

STRUCTURE: Final = [
    _structure("of no bytes", b""),
    _structure("of spaces", b" " * 1000),
    _structure("null", b"null", "not a JSON object"),
    _structure("a list", b"[]", "not a JSON object"),
    _structure("a number", b"5", "not a JSON object"),
    _structure("of zeros", bytes(1000)),
    _structure("that is HTML", b"<html><body>503</body></html>"),
    _structure("of 16 MiB and a byte", b" " * (MAX_MANIFEST_SIZE + 1), "more than any manifest|which no manifest has"),
    _structure("nested 100,000 deep", b"[" * 100_000, "nested too deeply"),
    _structure("nested a million deep", b'{"a":' * 1_000_000, _VALUES),
    _structure("of five million lists", b'{"a":[' + b"[]," * 5_000_000 + b"[]]}", _VALUES),
    _structure("of three million fields", b"{" + b'"a":0,' * 2_700_000 + b'"a":0}', _VALUES),
    _structure("of 16 MiB in one text", b'{"a":"' + b"a" * (MAX_MANIFEST_SIZE - 9) + b'"}', "has no field"),
    _structure("of 16 MiB behind a smiling face", '{"a":"😀'.encode() + b"a" * (15 << 20) + b'"}', "not plain ASCII"),
    _structure("of 16 MiB without an end", b'{"a":"' + b"a" * (15 << 20)),
    Case("a byte order mark", content("rsm-manifest", lambda raw: b"\xef\xbb\xbf" + raw), REFUSED, "is not JSON"),
    Case("UTF-16", content("rsm-manifest", lambda raw: raw.decode().encode("utf-16")), REFUSED, "is not JSON"),
    Case("half a manifest", content("rsm-manifest", lambda raw: raw[: len(raw) // 2]), REFUSED, "is not JSON"),
    Case("junk behind it", content("rsm-manifest", lambda raw: raw + b"\xff\x00junk"), SAME),
    Case("15 MiB of junk behind it", content("rsm-manifest", lambda raw: raw + b"x" * (15 << 20)), SAME),
    Case(
        "white space everywhere",
        content("rsm-manifest", lambda raw: json.dumps(json.loads(raw), indent=9).encode()),
        SAME,
    ),
    Case("a comment", content("rsm-manifest", lambda raw: b"/* */" + raw), REFUSED, "is not JSON"),
    Case("a comma too many", content("rsm-manifest", lambda raw: raw[:-1] + b",}"), REFUSED, "is not JSON"),
    Case("the same field twice, the last right", text("{", '{"compression":"x",'), SAME),
    Case(
        "the same field twice, the last wrong",
        text('"compression":false', '"compression":false,"compression":7'),
        REFUSED,
        _FIELDS,
    ),
    _beside("a byte that is not UTF-8", b'"\xff"', words="is not UTF-8"),
    _beside("15 MiB of text", b'"' + b"a" * (15 << 20) + b'"', SAME),
    _beside("half a character", b'"\\ud800"', SAME),
    _beside("a text that does not end", b'"', words="is not JSON"),
    _beside("a number of a million digits", b"9" * 1_000_000, words="a number in it has 1000000 digits"),
    _beside("a hundred thousand lists", b"[" + b"[]," * 100_000 + b"[]]", words=_VALUES),
    _beside("ten thousand lists", b"[" + b"[]," * 10_000 + b"[]]", SAME),
    Case(
        "a name one letter off", text('"compression":', '"compressiom":'), REFUSED, "looks like a damaged|has no field"
    ),
    Case("version 2", field("version", "2"), REFUSED, "version is not 1"),
    Case("version true", field("version", True), REFUSED, "version is not 1"),
    Case("version the number 1", field("version", 1), SAME),
    Case("version 1.0", field("version", 1.0), REFUSED, "version is not 1"),
    *(
        Case(f"no {name}", without(name), REFUSED, "has no field|looks like")
        for name in ("version", "chunkIndex", "segmentIndexes", "compression", "segmentIndexes.transaction")
    ),
    Case("chunkIndex a text", field("chunkIndex", "x"), REFUSED, "not an object"),
    Case("indexes a list", field("segmentIndexes", []), REFUSED, "not an object"),
    Case("an index null", field("segmentIndexes.offset", None), REFUSED, "not an object"),
]

_DATA_KEY: Final = "encryption.dataKey"

ENCRYPTION: Final = [
    Case(
        "encryption of a plain segment",
        field("encryption", {"dataKey": "key1:AAAA", "aad": "AAAA"}),
        REFUSED,
        "which is wrong with",
    ),
    Case("no encryption of an encrypted one", without("encryption"), REFUSED, "which is wrong without", "enc"),
    Case("encryption null where it is plain", field("encryption", None), SAME),
    Case("encryption a text", field("encryption", "x"), REFUSED, "not an object", "enc"),
    Case("a data key without a colon", field(_DATA_KEY, "key1"), REFUSED, "exactly one colon", "enc"),
    Case("a data key with two colons", field(_DATA_KEY, "key1:AAAA:AAAA"), REFUSED, "exactly one colon", "enc"),
    Case("a blank key id", field(_DATA_KEY, " :AAAA"), REFUSED, "blank", "enc"),
    Case("no key", field(_DATA_KEY, "key1:"), REFUSED, "holds no key", "enc"),
    Case("a wrapped key of three bytes", field(_DATA_KEY, "key1:AAAA"), (0, 0, 4, 4), "key1", "enc"),
    Case("a wrapped key of 11 MiB", field(_DATA_KEY, "key1:" + "A" * (11 << 20)), (0, 0, 4, 4), "key1", "enc"),
    Case("an unknown key id", field(_DATA_KEY, "key9:AAAA"), (0, 0, 4, 4), "key9", "enc"),
    Case(
        "a key id of 100,000 characters",
        field(_DATA_KEY, "k" * 100_000 + ":AAAA"),
        (0, 0, 4, 4),
        "kkk…kkk",
        "enc",
    ),
    Case("a key id that is a path", field(_DATA_KEY, "../../etc/passwd:AAAA"), (0, 0, 4, 4), "passwd", "enc"),
    Case("a key id that moves the cursor", field(_DATA_KEY, "\x1b[2J\n\r\x07:AAAA"), (0, 0, 4, 4), "", "enc"),
    Case("a key id of half a character", text('"dataKey":"', '"dataKey":"\\ud800'), REFUSED, "not text", "enc"),
    Case("a key id in lines of others", field(_DATA_KEY, "\u202egnirts\u2066:AAAA"), (0, 0, 4, 4), "", "enc"),
    Case("aad without its padding", text('="}', '"}'), REFUSED, "base64", "enc"),
    Case("aad of 11 MiB", field("encryption.aad", "A" * (11 << 20)), (0, 0, 4, 4), "damaged|decrypt", "enc"),
    Case("another aad", field("encryption.aad", "A" * 44), (0, 0, 4, 4), "damaged|decrypt", "enc"),
]

_ENTRIES: Final = "segmentIndexes."

INDEXES: Final = [
    Case("an index at 2^31-1", field(_ENTRIES + "timestamp.position", 2**31 - 1), REFUSED, "the index before it ends"),
    Case("an index of 2^31-1 bytes", field(_ENTRIES + "leaderEpoch.size", 2**31 - 1), (0, 4, 0, 4), "damaged"),
    Case("an index of -1 bytes", field(_ENTRIES + "offset.size", -1), REFUSED, _FIELDS),
    Case("an index of null bytes", field(_ENTRIES + "leaderEpoch.size", None), (0, 4, 0, 0), ""),
    Case("indexes that overlap", field(_ENTRIES + "timestamp.position", 0), REFUSED, "the index before it ends"),
]

_RECORDED: Final = "remoteLogSegmentMetadata."
_OTHER: Final = "it is the manifest of another segment"
_WHO: Final = _RECORDED + "remoteLogSegmentId."


def _recorded(name: str, path: str, value: object, codes: Codes) -> Case:
    return Case(f"recorded {name}", field(_RECORDED + path, value), codes)


METADATA: Final = [
    Case("no metadata", without("remoteLogSegmentMetadata"), SAME),
    Case("metadata a text", field("remoteLogSegmentMetadata", "junk"), SAME),
    Case(
        "metadata nested 900 deep",
        text('"remoteLogSegmentMetadata":{', '"remoteLogSegmentMetadata":{"x":' + "[" * 900 + "]" * 900 + ","),
        SAME,
    ),
    Case("another topic", field(_WHO + "topicIdPartition.topicPartition.topic", "payroll"), REFUSED, _OTHER),
    Case(
        "another topic of 100,000 letters",
        field(_WHO + "topicIdPartition.topicPartition.topic", "p" * 100_000),
        REFUSED,
        _OTHER,
    ),
    Case("another topic id", field(_WHO + "topicIdPartition.topicId", str(Uuid(bytes(16)))), REFUSED, _OTHER),
    Case("another partition", field(_WHO + "topicIdPartition.topicPartition.partition", 1), REFUSED, _OTHER),
    Case("a partition of 2^70", field(_WHO + "topicIdPartition.topicPartition.partition", 2**70), REFUSED, _OTHER),
    Case("another segment id", field(_WHO + "id", str(Uuid(bytes(16)))), REFUSED, _OTHER),
    Case("another start offset", field(_RECORDED + "startOffset", 1), REFUSED, _OTHER),
    Case("a topic that is a number", field(_WHO + "topicIdPartition.topicPartition.topic", 5), SAME),
    _recorded("end 2^63-1", "endOffset", 2**63 - 1, SAME),
    _recorded("end -1", "endOffset", -1, SAME),
    _recorded("end of 400 digits", "endOffset", int("9" * 400), SAME),
    _recorded("timestamp 2^63", "maxTimestampMs", 2**63, SAME),
    _recorded("epochs none", "segmentLeaderEpochs", {}, SAME),
    _recorded("epochs 90,000", "segmentLeaderEpochs", {str(n): n for n in range(90_000)}, SAME),
    _recorded("epochs negative", "segmentLeaderEpochs", {"-1": 0}, SAME),
    _recorded("epochs with leading zeros", "segmentLeaderEpochs", {"00": 0}, SAME),
    _recorded("epochs of 5,000 digits", "segmentLeaderEpochs", {"9" * 5000: 0}, SAME),
    _recorded("epochs in other digits", "segmentLeaderEpochs", {"٠": 0}, SAME),
    _recorded("epochs a list", "segmentLeaderEpochs", [0], SAME),
    _recorded("transactions a text", "txnIdxEmpty", "yes", SAME),
]

CASES: Final = [*NUMBERS, *CHUNKS, *STRUCTURE, *ENCRYPTION, *INDEXES, *METADATA]
