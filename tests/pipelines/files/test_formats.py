"""ORC, Avro and SequenceFiles: read by other libraries, read back, and damaged."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro
import pyarrow.orc as arrow_orc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipelines.files.test_files import ROWS, batch, read, write
from tests.support.pipelines.pipeline_runs import pipeline_of, texts
from tieredstore.errors import ConfigError, CorruptDataError
from tieredstore.pipelines.files.formats import AvroContainer, Orc, Parquet, Text
from tieredstore.pipelines.files.sequencefile import (
    BYTES,
    LONG,
    SequenceFile,
    SequenceFileReader,
    SequenceFileWriter,
    bytes_writable,
    compress,
    decompress,
    of_bytes_writable,
    sequence_rows,
    vint,
)
from tieredstore.pipelines.filing.messagepack import pack_bytes, pack_number, unpack
from tieredstore.pipelines.format_table import FORMATS, format_of
from tieredstore.pipelines.writers import Format, JsonLines
from tieredstore.testing.output_format_tests import OutputFormatTests

PACKED = sorted(FORMATS["sequencefile"].codecs)
NEW = ("orc", "avro", "sequencefile", "messagepack-sequencefile")


def format_named(name: str, codec: str) -> Format:
    properties = {"secor.file.reader.writer.factory": name, "secor.compression.codec": codec}
    return format_of(pipeline_of(**texts(properties)).own)


ALL = [format_named(name, codec) for name in NEW for codec in FORMATS[name].codecs]


def named(how: Format) -> str:
    messagepack = "-messagepack" if isinstance(how, SequenceFile) and how.messagepack else ""
    return f"{how.name}{messagepack}-{getattr(how, 'codec', '')}"


def data_of(files: dict[str, bytes]) -> tuple[bytes, bytes | None]:
    """Return the file, and its sidecar file."""
    beside = [content for key, content in files.items() if key.rpartition("/")[2].startswith(".")]
    (data,) = (content for key, content in files.items() if not key.rpartition("/")[2].startswith("."))
    return data, beside[0] if beside else None


@pytest.mark.parametrize("how", ALL, ids=named)
def test_a_written_file_is_read_whole(how: Format) -> None:
    rows = read(*data_of(write(how, batch())))
    assert [{name: row[name] for name in ("key", "value", "headers")} for row in rows] == list(ROWS)
    assert [(row["offset"], row["timestamp"]) for row in rows] == [(at, 1_000 + at) for at in range(5)]


def test_others_read_the_whole_envelope() -> None:
    data, _ = data_of(write(Orc("snappy"), batch()))
    table: Any = arrow_orc.ORCFile(io.BytesIO(data)).read()
    assert table.column("value").to_pylist() == [row["value"] for row in ROWS]
    data, _ = data_of(write(AvroContainer("snappy"), batch()))
    reader: Any = fastavro.reader(io.BytesIO(data))
    first, *rest = reader
    assert first["timestamp"].isoformat() == "1970-01-01T00:00:01+00:00"
    assert first["headers"] == ROWS[0]["headers"]
    assert [row["offset"] for row in rest] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "how", [Orc(), AvroContainer("gzip"), SequenceFile("none"), SequenceFile("gzip", messagepack=True)], ids=named
)
def test_the_same_records_are_the_same_files_in_whatever_batches_they_come(how: Format) -> None:
    rows = [{"key": b"k", "value": b"v" * (number % 7), "headers": None} for number in range(40)]
    whole = batch(rows=rows)
    limits = {"file_bytes": 60, "file_records": 0}
    expected = write(how, whole, **limits)
    assert write(how, whole.slice(0, 17), whole.slice(17), **limits) == expected
    assert write(how, *(whole.slice(number, 1) for number in range(40)), **limits) == expected


def test_a_sequence_file_is_what_hadoop_writes() -> None:
    """Except for the sync marker, the bytes equal those of Hadoop's ``SequenceFile.Writer`` and ``WritableUtils``."""
    file = io.BytesIO()
    writer = SequenceFileWriter(file, LONG, "none", b"")
    writer.append(struct.pack(">q", 7), bytes_writable(b"value"))
    writer.close()
    header = b"SEQ\x06" + bytes([len(LONG)]) + LONG.encode() + bytes([len(BYTES)]) + BYTES.encode() + b"\0\0" + bytes(4)
    data = file.getvalue()
    assert data.startswith(header)
    assert data[len(header) + 16 :] == struct.pack(">iiqi", 17, 8, 7, 5) + b"value"
    for number, encoded in (
        (-112, b"\x90"),
        (127, b"\x7f"),
        (128, b"\x8f\x80"),
        (-113, b"\x87\x70"),
        (1 << 20, b"\x8d\x10\0\0"),
    ):
        assert vint(number) == encoded


def test_record_compression_and_version_five_are_read_too() -> None:
    value = compress("gzip", bytes_writable(b"one"))
    head = b"SEQ\x05" + vint(len(LONG)) + LONG.encode() + vint(len(BYTES)) + BYTES.encode() + b"\x01\0"
    codec = b"org.apache.hadoop.io.compress.GzipCodec"
    sync = bytes(range(16))
    record = struct.pack(">iiq", 8 + len(value), 8, 3) + value
    data = head + vint(len(codec)) + codec + sync + record + b"\xff\xff\xff\xff" + sync + record
    assert [row["value"] for row in sequence_rows(SequenceFileReader(io.BytesIO(data)))] == [b"one", b"one"]
    with pytest.raises(CorruptDataError):
        read(data.replace(b"GzipCodec", b"OwnsCodec"))
    with pytest.raises(CorruptDataError):
        read(data[:-4])


def test_markers_stand_in_long_files_and_blocks_end_by_bytes() -> None:
    rows = [{"key": None, "value": bytes([number % 251]) * 30_000, "headers": None} for number in range(50)]
    for how in (SequenceFile("none"), SequenceFile("snappy", messagepack=True), SequenceFile("lz4")):
        data, beside = data_of(write(how, batch(rows=rows)))
        assert [row["value"] for row in read(data, beside)] == [row["value"] for row in rows]
        assert [row["offset"] for row in read(data)] == list(range(50))


@pytest.mark.parametrize(
    "how", [SequenceFile("none"), SequenceFile("gzip"), AvroContainer("none"), Orc("none")], ids=named
)
def test_a_damaged_file_is_reported_and_never_hangs(how: Format) -> None:
    rows = [{"key": b"k", "value": b"v" * 100, "headers": None} for _ in range(20)]
    data, _ = data_of(write(how, batch(rows=rows)))
    whole = read(data)
    seen = 0
    for at in range(0, len(data), max(1, len(data) // 60)):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        try:
            seen += read(bytes(damaged)) != whole
        except CorruptDataError:
            seen += 1
    assert seen
    for stop in (len(data) // 2, len(data) - 1):
        with pytest.raises(CorruptDataError):
            read(data[:stop])


@given(st.binary(max_size=400))
def test_no_bytes_hang_a_reader_of_sequence_files(data: bytes) -> None:
    for start in (b"SEQ\x06", b"SEQ\x06\x04long\x04long\0\0"):
        try:
            list(SequenceFileReader(io.BytesIO(start + data)))
        except ValueError:
            continue


@given(st.sampled_from(PACKED), st.binary(max_size=2000), st.integers(1, 300))
def test_every_codec_gives_back_what_it_took(codec: str, data: bytes, times: int) -> None:
    whole = data * times
    assert decompress(codec, compress(codec, whole), len(whole)) == whole
    if whole and codec != "none":
        with pytest.raises(ValueError, match=r"decompresses to more|damaged"):
            decompress(codec, compress(codec, whole), len(whole) - 1)


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_a_piece_has_several_chunks_as_hadoop_writes_it(codec: str) -> None:
    parts = [b"a" * 300, b"b", b"c" * 200]
    chunks = [compress(codec, part)[8:] for part in parts]
    whole = b"".join(parts)
    data = struct.pack(">I", len(whole)) + b"".join(struct.pack(">I", len(chunk)) + chunk for chunk in chunks)
    assert decompress(codec, data * 2, 2 * len(whole)) == whole * 2


@given(st.sampled_from([one for one in PACKED if one != "none"]), st.binary(max_size=100))
def test_no_bytes_hang_a_codec(codec: str, data: bytes) -> None:
    try:
        decompress(codec, data, 10_000)
    except ValueError:
        return


@given(st.integers(0, 2**64 - 1), st.binary(max_size=70_000))
def test_messagepack_of_keys_is_read_back(number: int, data: bytes) -> None:
    assert unpack(pack_number(number)) == number
    assert unpack(pack_bytes(data)) == data


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("c0", None), ("c2", False), ("c3", True), ("7f", 127), ("e0", -32), ("d1ff00", -256),
        ("cb3ff8000000000000", 1.5),
        ("a3666f6f", "foo"), ("d903666f6f", "foo"), ("c403000102", b"\0\1\2"), ("93010203", [1, 2, 3]),
        ("82a161019202a0c0", None), ("81a16193c0c2c3", {"a": [None, False, True]}), ("dc0002c3c2", [True, False]),
        ("de000101a178", {1: "x"}), ("d6ff00000001", b"\0\0\0\1"), ("c70201aabb", b"\xaa\xbb"),
    ],
)  # fmt: skip
def test_messagepack_by_its_specification(data: str, value: object) -> None:
    if data == "82a161019202a0c0":
        with pytest.raises(ValueError, match="list or a map"):
            unpack(bytes.fromhex(data))
    else:
        assert unpack(bytes.fromhex(data)) == value


@given(st.binary(max_size=200))
def test_no_bytes_break_messagepack_otherwise_than_by_a_word(data: bytes) -> None:
    for whole in (data, b"\x91" * 100 + data):
        try:
            unpack(whole)
        except ValueError:
            continue


def test_values_have_to_be_secors() -> None:
    assert of_bytes_writable(bytes_writable(b"x")) == b"x"
    for wrong in (b"", b"\0\0\0\2x", b"\0\0\0"):
        with pytest.raises(ValueError, match="BytesWritable"):
            of_bytes_writable(wrong)


@pytest.mark.parametrize(
    "output",
    [
        Parquet("zstd"), JsonLines("gzip"), Text("zstd"), Text("gzip"), Orc(), AvroContainer(), SequenceFile(),
        SequenceFile("lz4", messagepack=True),
    ],
    ids=named,
)  # fmt: skip
class TestOurs(OutputFormatTests):
    """The test suite that we ship for custom formats."""

    def values_of(self, data: bytes, sidecar: bytes | None) -> list[bytes | None]:
        return [row["value"] for row in read(data, sidecar)]


class Lines(Format):
    """Custom format without its own suite."""

    name = "lines"

    def __init__(self, codec: str) -> None:
        self.codec = codec

    @property
    def ending(self) -> str:
        return ".lines"

    def open(self, file: Any, sidecar: Any) -> Any:
        raise NotImplementedError


def test_a_format_of_ones_own_is_named_by_module_and_class() -> None:
    own = pipeline_of(**texts({"secor.file.reader.writer.factory": f"{__name__}:Lines"})).own
    how = format_of(own)
    assert isinstance(how, Lines)
    assert (how.ending, how.codec) == (".lines", "zstd")
    for wrong in (f"{__name__}:Nothing", "json:JSONDecoder", "no.such.module:Class"):
        with pytest.raises(ConfigError, match=r"secor\.file\.reader\.writer\.factory"):
            format_of(pipeline_of(**texts({"secor.file.reader.writer.factory": wrong})).own)
    with pytest.raises(ConfigError, match="is lz4, which text files cannot have"):
        pipeline_of(**texts({"secor.file.reader.writer.factory": "text", "secor.compression.codec": "lz4"}))
