"""PySpark finds the format ``memq`` here, because it searches top-level modules named ``pyspark_*``."""

from tieredstore.spark.memq.data_source import MemqDataSource as DefaultSource

__all__ = ["DefaultSource"]
