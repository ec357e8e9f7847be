"""Spark data source ``tieredstore``, which reads topics directly from the bucket. Needs ``tieredstore[spark]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.installation import Extra

with Extra("tieredstore.spark", "spark"):
    from tieredstore.spark.source.data_source import TieredStoreDataSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from tieredstore.remote.stores import StoreLike
    from tieredstore.spark.memq.data_source import MemqDataSource
    from tieredstore.spark.pipelines.runs import start_pipelines
    from tieredstore.spark.source.map_records import map_records
    from tieredstore.spark.source.udf import decode_batches, decode_segments
    from tieredstore.spark.verification import verify

__all__ = [
    "MemqDataSource",
    "TieredStoreDataSource",
    "decode_batches",
    "decode_segments",
    "map_records",
    "read",
    "register",
    "start_pipelines",
    "verify",
]


def register(spark: SparkSession) -> None:
    """Register the data sources ``tieredstore`` and ``memq``, and the data sources of plug-ins, in a Spark session.

    Without this registration, Spark finds the data sources only if the package was installed from a wheel. On some
    clusters, Spark does not find them even then.

    Raises ConfigError if the Python of Spark's workers lacks ``tieredstore[spark]``. To avoid this error, set
    ``PYSPARK_PYTHON`` to a Python with this package before the session begins.
    """
    from tieredstore.installation import attached_parts  # noqa: PLC0415  as below
    from tieredstore.spark.source.workers import check_worker_python  # noqa: PLC0415

    check_worker_python(spark)
    for source in (TieredStoreDataSource, *attached_parts("tieredstore.spark")):
        spark.dataSource.register(source)


def read(spark: SparkSession, source: StoreLike, topic: str, **options: str) -> DataFrame:
    """Return a topic as a DataFrame with the columns of Spark's Kafka source.

    ``source`` is a store in any form that :func:`tieredstore.open` takes. If ``source`` names a broker too, the
    broker's newer records follow the bucket's. ``options`` are the options of ``spark.read.format("tieredstore")``
    other than the store's settings.
    """
    from tieredstore.spark.source.store_source import store_source  # noqa: PLC0415  as below

    register(spark)
    store = store_source(source)
    named = {} if store.settings_file is None else {"settings": store.settings_file}
    broker: Mapping[str, str] = getattr(source, "broker", None) or {}
    client = {f"kafka.{name}": text for name, text in broker.items()}
    reader = spark.read.format("tieredstore").options(**named, **dict(store.properties), **client, **options)
    return reader.option("subscribe", topic).load()


def __getattr__(name: str) -> object:
    # Import on first use, because Spark imports this package whenever it searches for data sources.
    if name in ("decode_batches", "decode_segments"):
        with Extra(f"tieredstore.spark.{name}", "spark"):
            from tieredstore.spark.source import udf  # noqa: PLC0415

        return getattr(udf, name)
    if name == "MemqDataSource":
        from tieredstore.spark.memq import data_source  # noqa: PLC0415

        return data_source.MemqDataSource
    if name == "map_records":
        from tieredstore.spark.source import map_records as mapping  # noqa: PLC0415

        return mapping.map_records
    if name == "start_pipelines":
        from tieredstore.spark.pipelines import runs  # noqa: PLC0415

        return runs.start_pipelines
    if name == "verify":
        from tieredstore.spark import verification  # noqa: PLC0415

        return verification.verify
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
