"""SequenceFiles read and written by Hadoop's own classes, in the JVM of a Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


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
