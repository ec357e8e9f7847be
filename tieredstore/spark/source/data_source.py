"""The data source ``tieredstore``. Imports little, because Spark imports this module whenever it searches for data
sources.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark.sql.datasource import DataSource

from tieredstore.errors import ConfigError
from tieredstore.spark.source.workers import one_sentence, spare_modules

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from tieredstore.spark.source.options import SourceOptions

_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class TieredStoreDataSource(DataSource):
    """The Spark format ``tieredstore``, for batch queries and streams. See docs/how-to/spark.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tieredstore"

    def schema(self) -> StructType:
        """Return the schema of the requested columns. By default these are the columns of Spark's Kafka source."""
        from tieredstore.spark.source.options import columns_of  # noqa: PLC0415
        from tieredstore.spark.source.rows import RowShape  # noqa: PLC0415

        spare_modules()
        with one_sentence():
            return RowShape(columns_of(self.options)).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from tieredstore.spark.source.batch import BatchReader, PushdownBatchReader  # noqa: PLC0415

        with one_sentence():
            options = self._options(schema, streaming=False)
            pushes = options.filter_pushdown and is_pushing_down()
            return PushdownBatchReader(options) if pushes else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from tieredstore.spark.source.streaming import StreamReader  # noqa: PLC0415

        with one_sentence():
            return StreamReader(self._options(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002  Spark's signature
        """Raise ConfigError, because this format only reads."""
        self._refuse_to_write()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802  Spark's name
        """Raise ConfigError, because this format only reads."""
        self._refuse_to_write()

    def _refuse_to_write(self) -> NoReturn:
        with one_sentence():
            raise ConfigError(
                "the format tieredstore only reads; write to a topic by Spark's format kafka: the broker, or "
                "`tieredstore upload`, then stores the segments"
            )

    def _options(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        from tieredstore.spark.source.options import parse_options  # noqa: PLC0415
        from tieredstore.spark.source.rows import RowShape  # noqa: PLC0415

        options = parse_options(self.options, streaming=streaming)
        if schema != RowShape(options.columns).schema:
            raise ConfigError(
                "the schema of tieredstore is fixed: leave out schema(), and choose columns by the option columns"
            )
        return options


def is_pushing_down() -> bool:
    """Return True in the worker process that pushes filters down. Spark starts this process only if Spark's
    configuration allows pushdown.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", None) == _PUSHDOWN_WORKER
