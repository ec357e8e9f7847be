"""Where PySpark finds the data source by itself: it looks into top-level modules named ``pyspark_*``."""

from tieredstore.spark.source.data_source import TieredStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
