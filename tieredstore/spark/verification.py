"""Verification of a large bucket as a Spark job, with the findings as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias, get_type_hints

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tieredstore.api.verifying import Finding, convert_finding
from tieredstore.catalog.listing import Scope, list_segments
from tieredstore.errors import ConfigError
from tieredstore.model import Uuid
from tieredstore.ops.bucket import open_bucket
from tieredstore.ops.verification.selection import Level, Sample, Selection
from tieredstore.ops.verification.verify_parts import VerifyPart, plan_parts, verify_part
from tieredstore.query.positions import GivenPlace, time_of
from tieredstore.remote.stores import StoreLike
from tieredstore.spark.source.store_source import StoreSource, store_source
from tieredstore.spark.source.workers import each_in_one_sentence, one_sentence, pack, unpack

_MOST_TASKS: Final = 10_000
_Batches: TypeAlias = Iterator[pa.RecordBatch]

_IS_NUMBER: Final = {name: kind in (int, int | None) for name, kind in get_type_hints(Finding).items()}
_FINDINGS: Final = StructType(
    [StructField(name, LongType() if is_number else StringType()) for name, is_number in _IS_NUMBER.items()]
)


def verify(
    spark: SparkSession,
    settings: StoreLike | StoreSource,
    *,
    level: Literal["listing", "index", "data"] = "listing",
    topic: str | None = None,
    topic_id: str | None = None,
    partition: int | None = None,
    sample_percent: float | None = None,
    seed: str = "",
    since: GivenPlace = None,
    segments_per_task: int = 200,
    parallel: int = 2,
) -> DataFrame:
    """Return the findings of ``tieredstore verify`` as a DataFrame with a row for each finding, in no particular order.
    Intact segments have no row.

    ``settings`` name the store in any form that :func:`tieredstore.open` takes. This call lists the bucket once. Tasks
    read manifests, indexes and logs each time the DataFrame is computed, so write or cache the DataFrame.

    Each task checks about ``segments_per_task`` segments of one partition, ``parallel`` of them at a time. A separate
    task per partition checks that the partition's segments follow each other. A corrupt segment gives a row. An error
    of the store fails the task. Segments written before the time ``since`` are only checked for presence.
    """
    source = store_source(settings)
    if segments_per_task < 1 or parallel < 1:
        raise ConfigError("segments_per_task and parallel must be at least 1")
    sample = None if sample_percent is None else Sample(sample_percent / 100, seed)
    moment = time_of("since", since)
    selection = Selection(Level(level), sample, None if moment is None else moment.timestamp_ms)
    scope = Scope(topic, None if topic_id is None else Uuid.parse(topic_id), partition)
    with one_sentence(), open_bucket(source.load()) as bucket:
        parts = list(plan_parts(list_segments(bucket.store, bucket.prefix, scope), segments_per_task))
    tasks = spark.createDataFrame([(pack(part),) for part in parts], "part binary")
    if parts:
        tasks = tasks.repartition(min(len(parts), _MOST_TASKS))
    findings: DataFrame = tasks.mapInArrow(_task(source, selection, parallel), _FINDINGS)
    return findings


def _task(source: StoreSource, selection: Selection, parallel: int) -> Callable[[_Batches], _Batches]:
    def run(batches: _Batches) -> _Batches:
        return each_in_one_sentence(_verify_parts(source, selection, parallel, batches))

    return run


def _verify_parts(source: StoreSource, selection: Selection, parallel: int, batches: _Batches) -> _Batches:
    schema = pa.schema([(name, pa.int64() if is_number else pa.string()) for name, is_number in _IS_NUMBER.items()])
    for packed in (packed for batch in batches for packed in batch.column(0).to_pylist()):
        part: VerifyPart = unpack(packed)
        found = list(part.known)
        # Open the bucket for each part again, because a task may wait long between two parts, and should not keep
        # connections open meanwhile.
        with open_bucket(source.load()) as bucket:
            found += verify_part(bucket, part, selection, parallel=parallel)
        yield pa.RecordBatch.from_pylist([_row(convert_finding(finding)) for finding in found], schema=schema)


def _row(finding: Finding) -> dict[str, object]:
    row = {name: getattr(finding, name) for name in _IS_NUMBER}
    return {name: str(value) if isinstance(value, Uuid) else value for name, value in row.items()}
