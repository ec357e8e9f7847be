"""Verification as a Spark job: its rows equal the findings of ``verify``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.damage.planted_bucket import CHUNK, PlantedBucket
from tieredstore.api.verifying import convert_finding
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.errors import ConfigError
from tieredstore.format.keys import Suffix
from tieredstore.ops.verification.selection import Level, Selection
from tieredstore.ops.verification.verification import verify as verify_bucket
from tieredstore.spark import verify


def settings_of(folder: Path) -> dict[str, str]:
    return {"storage.backend.class": "filesystem", "storage.root": str(folder), "chunk.size": str(CHUNK)}


@pytest.fixture
def damaged(tmp_path: Path) -> PlantedBucket:
    planted = PlantedBucket.of("plain", FilesystemObjectStore(tmp_path))
    planted.flip(Suffix.LOG, planted.headers(1)[3].position + 100, number=1)
    planted.delete(*Suffix, number=2)
    planted.put(Suffix.MANIFEST, b"{", number=3)
    return planted


def test_the_rows_are_what_the_command_finds(spark: SparkSession, damaged: PlantedBucket, tmp_path: Path) -> None:
    rows = verify(spark, settings_of(tmp_path), level="data", segments_per_task=1).collect()
    whole = verify_bucket(damaged.bucket, selection=Selection(Level.DATA))
    found = [convert_finding(finding) for checked in whole for finding in checked.findings]
    expected = [{each.name: str(getattr(one, each.name)) for each in fields(one)} for one in found]
    actual = [{name: str(value) for name, value in row.asDict().items()} for row in rows]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["base_offset"], row["kind"]

    assert sorted(actual, key=place) == sorted(expected, key=place)
    assert {row["kind"] for row in expected} >= {"batch-crc", "manifest-damaged"}
    assert verify(spark, settings_of(tmp_path), topic="other").count() == 0


def test_what_cannot_be_is_refused_before_any_task(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="segments_per_task"):
        verify(spark, settings_of(tmp_path), segments_per_task=0)
    with pytest.raises(ConfigError, match="a sample"):
        verify(spark, settings_of(tmp_path), sample_percent=5)
