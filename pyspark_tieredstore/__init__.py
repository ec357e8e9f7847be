"""PySpark finds the format ``tieredstore`` here, because it searches top-level modules named ``pyspark_*``."""

from tieredstore.spark.source.data_source import TieredStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
