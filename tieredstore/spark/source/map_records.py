"""Users' functions over records. They run in the task that decodes the records, so only their results reach the JVM."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.errors import PySparkException

from tieredstore.errors import ConfigError
from tieredstore.spark.source.batch import BatchReader
from tieredstore.spark.source.data_source import TieredStoreDataSource
from tieredstore.spark.source.options import SourceOptions, parse_options
from tieredstore.spark.source.rows import MappedRows, RecordFunction, apply_function, schema_of
from tieredstore.spark.source.tasks import read_task
from tieredstore.spark.source.workers import one_sentence, spare_modules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    from tieredstore.model import TopicPartition
    from tieredstore.partitions.log import OffsetWindow
    from tieredstore.reading.log_snapshot import LogSnapshot

_MIB: Final = 1024 * 1024
_TASKS_A_CORE: Final = 2

_numbers: Final = itertools.count(1)


def map_records(
    spark: SparkSession, function: RecordFunction, schema: StructType | pa.Schema | str, **options: object
) -> DataFrame:
    """Apply ``function`` to the records of each task and return its results as a DataFrame of ``schema``.

    The function runs in the Python process that fetches and decodes the records. It is called once per task with an
    iterator of Arrow batches, and yields Arrow batches. Only its results reach the JVM. Spark pickles the function as
    it pickles Spark UDFs. A retried task passes the same records.

    ``options`` are the options of the format ``tieredstore``, as text, boolean or number. An option that is None is
    left out. The option ``columns`` selects the function's input columns.

    A task may read up to 256 MiB if each core still gets two tasks. The option ``maxSplitBytes`` overrides this.
    Nothing is planned before a Spark action.

    ``schema`` is a schema of Spark or Arrow, or a DDL text (``"n long, total double"``). Raises ConfigError for invalid
    options. If the function yields other columns than the schema's, its task fails with an error that names them.
    """
    _check_arguments(spark, function)
    mapped = MappedRows(function, schema_of(schema))
    texts = {name: _option_text(value) for name, value in options.items() if value is not None}
    with one_sentence():
        _check_options(parse_options(texts, streaming=False))
    # Give each source a unique name, because Spark finds the source again by its name when it rebuilds a plan.
    source = source_class(mapped, f"{TieredStoreDataSource.name()}_map_{next(_numbers)}", _cores(spark))
    spark.dataSource.register(source)
    return spark.read.format(source.name()).options(**texts).load()


def source_class(mapped: MappedRows, name: str, cores: int | None) -> type[TieredStoreDataSource]:
    """Return a data source with the function's results as rows. Spark pickles the class by value, with the function."""

    class MappedRecords(TieredStoreDataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            spare_modules()
            return mapped.schema

        def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  Spark's signature
            with one_sentence():
                is_sized = "maxSplitBytes" in self.options
                options = _check_options(parse_options(self.options, streaming=False))
                return MappedReader(options, mapped, None if is_sized else cores)

    # Make cloudpickle pickle the class by value. Otherwise, cloudpickle would look for a module-level name, which does
    # not exist.
    MappedRecords.__module__ = "__main__"
    return MappedRecords


class MappedReader(BatchReader):
    """Plans a query like the format ``tieredstore``. Each task yields the function's results for its records.

    If ``cores`` is given, tasks are larger than tasks of the format ``tieredstore``, but each core still gets at least
    two.
    """

    task_bytes: ClassVar[tuple[int, int]] = 64 * _MIB, 256 * _MIB
    """Default bytes of a log per task, minimum and maximum. Tasks are larger than those of the format ``tieredstore``,
    because each task costs Spark some 10 ms of processor time. They can be larger, because the records do not reach the
    JVM.
    """

    def __init__(self, options: SourceOptions, mapped: MappedRows, cores: int | None = None) -> None:
        super().__init__(options)
        self._mapped = mapped
        self._cores = cores

    def _split_bytes(self, snapshot: LogSnapshot, windows: Mapping[TopicPartition, OffsetWindow]) -> int:
        if self._cores is None:
            return super()._split_bytes(snapshot, windows)
        total = sum(snapshot.bytes_between(where, *window) for where, window in windows.items())
        least, most = self.task_bytes
        return max(least, min(most, total // (_TASKS_A_CORE * self._cores)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the function's rows for one task."""
        return apply_function(read_task(partition, self._options), self._mapped)


def _check_options(options: SourceOptions) -> SourceOptions:
    if options.filter_pushdown:
        # Spark would filter by the function's columns, not by the records' columns, so refuse filters.
        raise ConfigError(
            "the option filterPushdown has no meaning for map_records: filter in the function, or by offsets"
        )
    return options


def _check_arguments(spark: object, function: object) -> None:
    if not hasattr(spark, "dataSource"):
        raise ConfigError(f"spark is of the type {type(spark).__name__}; it must be a SparkSession")
    if not callable(function):
        raise ConfigError(f"function is of the type {type(function).__name__}; it must be a function over batches")


def _cores(spark: SparkSession) -> int | None:
    """Return how many tasks the cluster runs in parallel. A client of Spark Connect cannot know the number, so the
    result is None."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:
        return None


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
