"""Golden data written by a real broker and the real plugin (tests/golden, one folder per case)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.paths import GOLDEN

CASES = sorted(path.parent.name for path in GOLDEN.glob("*/case.json"))


@dataclass(frozen=True)
class GoldenSegment:
    """One segment of a case: the broker's own files, and the plugin's three objects."""

    case: str
    topic: str
    topic_id: str
    partition: int
    base_offset: int
    end_offset: int
    snapshot: str
    main_path: str  # path of the objects below the store's root, with the prefix

    @property
    def directory(self) -> Path:
        return GOLDEN / self.case / "original" / f"{self.topic}-{self.partition}"

    def original(self, suffix: str) -> Path:
        return self.directory / f"{self.base_offset:020}.{suffix}"

    @property
    def snapshot_path(self) -> Path:
        return self.directory / self.snapshot

    def stored(self, suffix: str) -> Path:
        return GOLDEN / self.case / "store" / f"{self.main_path}.{suffix}"

    @property
    def segment_id(self) -> str:
        return self.main_path[-22:]

    def __str__(self) -> str:
        return f"{self.case}/{self.topic}-{self.partition}@{self.base_offset}"


@cache
def case_info(case: str) -> dict[str, Any]:
    """Return the content of ``case.json``."""
    case_file: dict[str, Any] = json.loads((GOLDEN / case / "case.json").read_text())
    return case_file


def case_path(case: str) -> Path:
    return GOLDEN / case


@cache
def segments(case: str) -> list[GoldenSegment]:
    """Return the segments of one case, by partition and offset."""
    info = case_info(case)
    manifests = [key.removesuffix(".rsm-manifest") for key in info["objects"] if key.endswith(".rsm-manifest")]
    originals: list[GoldenSegment] = []
    for partition in info["partitions"]:
        for segment in partition["segments"]:
            place = f"{info['topic']}-{info['topic_id']}/{partition['partition']}/{segment['base_offset']:020}-"
            (main_path,) = [path for path in manifests if path[:-22].endswith(place)]
            originals.append(
                GoldenSegment(
                    case,
                    info["topic"],
                    info["topic_id"],
                    partition["partition"],
                    segment["base_offset"],
                    segment["end_offset"],
                    segment["uploaded_producer_snapshot_is"],
                    main_path,
                )
            )
    return originals


ALL_SEGMENTS = [segment for case in CASES for segment in segments(case)]


def settings_text(case: str) -> dict[str, str]:
    """Return the plugin's settings of one case, with absolute paths."""
    lines = (GOLDEN / case / "rsm.properties").read_text().splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    return {
        name: str(GOLDEN / case / value) if name == "storage.root" or name.endswith(".key.file") else value
        for name, value in properties.items()
    }
