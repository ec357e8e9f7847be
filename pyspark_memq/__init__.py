"""Where PySpark finds the format memq by itself: it looks into top-level modules named ``pyspark_*``."""

from tieredstore.spark.memq.data_source import MemqDataSource as DefaultSource

__all__ = ["DefaultSource"]
