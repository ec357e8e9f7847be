"""Batches planned and read without a JVM: each option's effect on rows and tasks."""

from __future__ import annotations

import io
import itertools
import logging
import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.util import handle_worker_exception

from tests.support.records import fixtures
from tests.support.records.topic_buckets import Bucket
from tests.support.spark.spark_readings import READINGS, WRONG, all_of, places
from tests.support.spark.spark_tasks import as_texts, error_of, reader_of, rows_in, rows_of_task, splits_of, tasks_of
from tieredstore.errors import ConfigError, ResourceNotFoundError
from tieredstore.spark.source.data_source import TieredStoreDataSource
from tieredstore.spark.source.rows import RowShape

bucket = fixtures.filled_bucket


@pytest.mark.parametrize("reading", READINGS)
def test_options_select_rows_however_they_are_cut(bucket: Bucket, reading: str) -> None:
    options, expected = READINGS[reading]
    for cut in ({}, {"maxSplitBytes": 1000}, {"minPartitions": 7}, {"maxRecordsPerPartition": 33}):
        assert places(rows_in({**bucket.options, **options, **cut})) == expected


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_told_in_one_sentence(bucket: Bucket, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, sentence = WRONG[name]
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "1")  # one_sentence sets it in a worker
    error = error_of({**bucket.options, **options})
    assert isinstance(error, ConfigError | ResourceNotFoundError)
    message = told_to_spark(error)
    assert message == f"tieredstore.errors.{type(error).__name__}: {error}\n"
    assert sentence in message
    assert message.count("\n") == 1


def told_to_spark(error: Exception) -> str:
    """Return the text that a Python worker sends to the JVM."""
    sent = io.BytesIO()
    handle_worker_exception(error, sent)
    return sent.getvalue()[8:].decode()


def test_a_user_cannot_give_a_schema(bucket: Bucket) -> None:
    source = TieredStoreDataSource(as_texts({**bucket.options, "subscribe": "orders"}))
    with pytest.raises(ConfigError, match=r"leave out schema\(\), and choose columns by the option columns"):
        source.reader(RowShape(["key", "value"]).schema)


@pytest.mark.parametrize("size", [1, 500, 4096, 20_000])
def test_a_task_reads_no_more_bytes_than_it_may(bucket: Bucket, size: int) -> None:
    options = {**bucket.options, "subscribe": "payments", "maxSplitBytes": size}
    splits = splits_of(reader_of(options))
    # A split may be larger than asked, because the index has an entry per 4 KiB of log, and a batch cannot be divided.
    assert all(split.size_in_bytes <= size + 5000 for split in splits)
    assert len(splits) >= sum(split.size_in_bytes for split in splits) // (size + 5000)
    assert splits == sorted(splits, key=lambda split: split.start_offset)


@pytest.mark.parametrize("most", [1, 7, 333, 1000, 10**12])
def test_a_task_has_no_more_offsets_than_it_may(bucket: Bucket, most: int) -> None:
    ending = {"startingOffsets": '{"payments":{"0":850}}', "endingOffsets": '{"payments":{"0":1100}}'}
    reader = reader_of({**bucket.options, "subscribe": "payments", "maxRecordsPerPartition": most, **ending})
    tasks = tasks_of(reader)
    counts = [len(rows_of_task(reader, task)) for task in tasks]
    assert sum(counts) == 250
    assert max(counts) <= most
    assert len(tasks) <= 2 + 250 // min(most, 250)


@pytest.mark.parametrize("least", [2, 3, 8, 15])
def test_there_are_as_many_tasks_as_asked_for_where_logs_can_be_cut(bucket: Bucket, least: int) -> None:
    assert len(tasks_of(reader_of({**bucket.options, "subscribe": "payments", "minPartitions": least}))) >= least


def test_fewer_tasks_than_the_bytes_need_are_not_made(bucket: Bucket) -> None:
    options = {**bucket.options, "subscribe": "payments", "maxSplitBytes": 5000}
    needed = len(tasks_of(reader_of(options)))
    assert len(tasks_of(reader_of({**options, "minPartitions": 2}))) == needed > 10


def test_tasks_are_small_and_neither_they_nor_readers_show_settings(bucket: Bucket) -> None:
    options = {**bucket.options, "subscribe": "payments", "maxSplitBytes": 4096}
    reader = reader_of(options)
    tasks = tasks_of(reader)
    assert max(len(pickle.dumps(task)) for task in tasks) < 2000
    assert len(pickle.dumps(reader)) < 2000
    shown = repr(tasks) + repr(vars(reader)) + str(reader)
    assert "payments" in shown
    assert bucket.options["storage.root"] not in shown


def test_a_partition_of_sparks_own_making_has_no_rows(bucket: Bucket) -> None:
    reader = reader_of({**bucket.options, "subscribePattern": "none"})
    assert tasks_of(reader) == []
    assert rows_of_task(reader, InputPartition(None)) == []


def test_an_option_without_meaning_is_warned_of_once(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        reader_of({**bucket.options, "subscribe": "orders", "groupIdPrefix": "g", "kafkaConsumer.pollTimeoutMs": "1"})
    (record,) = caplog.records
    assert "groupIdPrefix, kafkaConsumer.pollTimeoutMs" in record.getMessage()


def test_offsets_are_resolved_once(tmp_path: Path) -> None:
    bucket = Bucket(tmp_path)
    bucket.write(100)
    reader = reader_of({**bucket.options, "subscribe": "orders"})
    tasks = tasks_of(reader)
    bucket.write(100)
    rows = list(itertools.chain.from_iterable(rows_of_task(reader, task) for task in tasks))
    assert places(rows) == all_of("orders", 0, 100)
    bucket.close()
