"""The data source ``memq``. Imports little, because Spark imports this module whenever it searches for data sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from tieredstore.errors import ConfigError
from tieredstore.spark.source.workers import one_sentence

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from tieredstore.spark.memq.options import TopicOptions


class MemqDataSource(DataSource):
    """The Spark format ``memq``: reads and writes topics of batches, as batch queries and streams. See
    ``docs/how-to/spark.md``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "memq"

    def schema(self) -> StructType:
        """Return the schema of the requested columns."""
        from tieredstore.spark.memq.options import COLUMNS  # noqa: PLC0415
        from tieredstore.spark.source.options import columns_of  # noqa: PLC0415
        from tieredstore.spark.source.rows import MEMQ_ROWS, RowShape  # noqa: PLC0415

        with one_sentence():
            return RowShape(columns_of(self.options, COLUMNS, MEMQ_ROWS.columns), MEMQ_ROWS).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from tieredstore.spark.memq.readers import MemqReader  # noqa: PLC0415

        with one_sentence():
            return MemqReader(self._options(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from tieredstore.spark.memq.readers import MemqStreamReader  # noqa: PLC0415

        with one_sentence():
            return MemqStreamReader(self._options(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query. Raise ConfigError for mode overwrite."""
        from tieredstore.spark.memq.options import parse_sink_options  # noqa: PLC0415
        from tieredstore.spark.memq.sink import MemqWriter  # noqa: PLC0415

        with one_sentence():
            if overwrite:
                raise ConfigError("a topic cannot be overwritten: write with mode append")
            return MemqWriter(*parse_sink_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream. The writer writes each row as a record, also in output mode update."""
        from tieredstore.spark.memq.options import parse_sink_options  # noqa: PLC0415
        from tieredstore.spark.memq.sink import MemqStreamWriter  # noqa: PLC0415

        with one_sentence():
            if overwrite:
                raise ConfigError("a topic cannot be overwritten: use output mode append or update")
            return MemqStreamWriter(*parse_sink_options(self.options), schema)

    def _options(self, schema: StructType, *, streaming: bool) -> TopicOptions:
        from tieredstore.spark.memq.options import parse_options  # noqa: PLC0415
        from tieredstore.spark.source.rows import MEMQ_ROWS, RowShape  # noqa: PLC0415

        options = parse_options(self.options, streaming=streaming)
        if schema != RowShape(options.columns, MEMQ_ROWS).schema:
            raise ConfigError(
                "the schema of memq is fixed: leave out schema(), and choose columns by the option columns"
            )
        return options
