"""SequenceFiles exchanged between pipelines and Hadoop's own classes, in Spark's JVM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pipelines.files.test_files import ROWS, batch, write
from tests.support.pipelines.pipeline_runs import listed, offsets_of, pipeline_of, verify_output
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.pipelines import Pipeline, with_generation
from tieredstore.pipelines.files.sequencefile import SequenceFile
from tieredstore.pipelines.filing.messagepack import pack_bytes, pack_number, unpack
from tieredstore.pipelines.upkeep.backfill import Backfill
from tieredstore.pipelines.upkeep.output_files import read_records
from tieredstore.pipelines.upkeep.record_sources import KeptFiles, Selected


class HadoopFiles:
    """SequenceFiles in local folders."""

    def __init__(self, spark: SparkSession) -> None:
        # Use private members, because PySpark has no public access to the JVM's classes.
        context: Any = spark.sparkContext
        self._io: Any = context._jvm.org.apache.hadoop.io
        self._conf: Any = context._jsc.hadoopConfiguration()
        self._hadoop: Any = context._jvm.org.apache.hadoop
        self._files: Any = self._hadoop.fs.FileSystem.getLocal(self._conf).getRaw()

    def read(self, path: Path) -> list[tuple[int | bytes, bytes]]:
        """Return keys (numbers or bytes) and values."""
        reader = self._io.SequenceFile.Reader(self._files, self._hadoop.fs.Path(str(path)), self._conf)
        try:
            is_long = reader.getKeyClassName() == "org.apache.hadoop.io.LongWritable"
            key = self._io.LongWritable() if is_long else self._io.BytesWritable()
            value = self._io.BytesWritable()
            records: list[tuple[int | bytes, bytes]] = []
            while reader.next(key, value):
                records.append((int(key.get()) if is_long else bytes(key.copyBytes()), bytes(value.copyBytes())))
            return records
        finally:
            reader.close()

    def write(
        self, path: Path, records: Sequence[tuple[int | bytes, bytes]], *, compression: str = "NONE", codec: str = ""
    ) -> None:
        """Write a file with these keys; ``compression`` is NONE, RECORD or BLOCK, ``codec`` a Hadoop class."""
        keys = [
            self._io.LongWritable(key) if isinstance(key, int) else self._io.BytesWritable(key) for key, _ in records
        ]
        writer = self._io.SequenceFile.createWriter(
            self._files, self._conf, self._hadoop.fs.Path(str(path)), keys[0].getClass(),
            self._io.BytesWritable().getClass(), getattr(self._io.SequenceFile.CompressionType, compression),
            self._codec(codec or "DefaultCodec"),
        )  # fmt: skip
        try:
            for key, (_, value) in zip(keys, records, strict=True):
                writer.append(key, self._io.BytesWritable(value))
        finally:
            writer.close()

    def _codec(self, name: str) -> Any:
        codec = getattr(self._hadoop.io.compress, name)()
        codec.setConf(self._conf)
        return codec


pytestmark = pytest.mark.slow

CODECS = ("none", "deflate", "gzip", "snappy", "lz4", "bzip2")
"""Codecs without zstd, because Hadoop needs a system library for it."""
TIME_MS = 1_700_000_000_000
RECORDS = 12
WRITTEN = [
    ("NONE", ""), ("RECORD", "DefaultCodec"), ("BLOCK", "DefaultCodec"), ("BLOCK", "GzipCodec"),
    ("RECORD", "SnappyCodec"), ("BLOCK", "Lz4Codec"), ("BLOCK", "BZip2Codec"),
]  # fmt: skip


@pytest.fixture
def hadoop(spark: SparkSession) -> HadoopFiles:
    return HadoopFiles(spark)


@pytest.mark.parametrize("messagepack", [False, True])
def test_hadoop_reads_what_pipelines_write(hadoop: HadoopFiles, tmp_path: Path, messagepack: bool) -> None:
    rows = [*ROWS, *({"key": b"k", "value": b"%d" % number, "headers": None} for number in range(300))]
    for codec in CODECS:
        files = write(SequenceFile(codec, messagepack), batch(rows=rows))
        (data,) = (content for key, content in files.items() if not key.rpartition("/")[2].startswith("."))
        path = tmp_path / f"{codec}.seq"
        path.write_bytes(data)
        read = hadoop.read(path)
        assert [value for _, value in read] == [row["value"] or b"" for row in rows]
        if not messagepack:
            assert [key for key, _ in read] == list(range(len(rows)))
            continue
        keys: list[Any] = [unpack(key) for key, _ in read if isinstance(key, bytes)]
        assert [(key[1], key.get(2), key[3]) for key in keys] == [
            (number, row["key"], 1000 + number) for number, row in enumerate(rows)
        ]


@pytest.mark.parametrize("messagepack", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_what_hadoop_writes_as_secor_does_is_printed_and_backfilled(
    hadoop: HadoopFiles, tmp_path: Path, messagepack: bool
) -> None:
    store = MemoryObjectStore()
    kept = pipeline_of(pipeline__name="secor", output__key__prefix="secor/", secor__generation="7")
    start = 0
    for compression, codec in WRITTEN:
        records = [(offset, _value(offset)) for offset in range(start, start + RECORDS)]
        path = tmp_path / f"{compression}-{codec}"
        keyed = [(_key(offset) if messagepack else offset, value) for offset, value in records]
        hadoop.write(path, keyed, compression=compression, codec=codec)
        key = f"secor/orders/dt=1/7_0_{start:020}"
        store.put(key, path.read_bytes())
        rows: list[Any] = [row for rows in read_records(kept, store, key) for row in rows.to_pylist()]
        assert [(row["offset"], row["value"]) for row in rows] == records
        assert {(row["key"], row["timestamp"]) for row in rows} == {(b"k", TIME_MS) if messagepack else (None, None)}
        start += RECORDS
    assert list(verify_output(kept, store)) == []
    _check_faults_are_named(kept, store)
    by_time = with_generation(pipeline_of(secor__message__parser__class="json"), 2)
    list(Backfill(by_time, store, KeptFiles(kept, store, "orders", 1 << 20), threads=1).run(Selected("orders")))
    written = [key for key in listed(store) if "/2_0_" in key]
    assert sorted(offset for key in written for offset in offsets_of(store, key)) == list(range(start))
    assert list(verify_output(by_time, store)) == []


def _check_faults_are_named(kept: Pipeline, store: MemoryObjectStore) -> None:
    """Assert that ``verify`` finds damage, duplicate and misplaced records in Hadoop's files."""
    (first, data), (second, other), *_ = [(key, store.get(key)) for key in listed(store, "secor/")]
    folder = first.rpartition("/")[0]
    for key, content, faults in (
        (first, data[:-4], {("content", first)}),
        (second, data, {("offsets", second)}),
        (first, other, {("offsets", first)}),
        (f"{folder}/7_0_{0:020}.copy", data, {("twice", f"{folder}/7_0_{0:020}.copy")}),
    ):
        before = store.get(key) if key in (first, second) else None
        store.put(key, content)
        assert {(problem.kind, problem.subject) for problem in verify_output(kept, store)} == faults
        store.delete([key])
        if before is not None:
            store.put(key, before)
    assert list(verify_output(kept, store)) == []


def _value(offset: int) -> bytes:
    """Return the value at this offset. One value of each file is larger than the buffers of Hadoop's codecs."""
    padding = "é" * (150_000 if offset % RECORDS == 7 else offset)
    return json.dumps({"timestamp": TIME_MS + offset, "padding": padding}).encode()


def _key(offset: int) -> bytes:
    """Pack the key as Secor's factory does."""
    fields = (
        pack_number(1) + pack_number(offset) + pack_number(2) + pack_bytes(b"k") + pack_number(3) + pack_number(TIME_MS)
    )
    return bytes([0x83]) + fields
