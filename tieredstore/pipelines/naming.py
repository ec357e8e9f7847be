"""The names of a generation's files, and who owns a generation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError, PreconditionFailed
from tieredstore.pipelines.entries import loaded_object

_NAME: Final = re.compile(r"(\d{1,9})_(\d{1,10})_(\d{20})(\..+)?")


@dataclass(frozen=True, slots=True)
class Naming:
    """``<root><topic>/<partitions>/<generation>_<kafkaPartition>_<first offset><extension>``."""

    root: str
    pipeline: str
    generation: int
    extension: str
    redriven: int = 0
    """How often the bad messages in a file of these were parsed again."""

    def data_key(self, topic: str, directory: str, partition: int, first_offset: int) -> str:
        """Of a file of records."""
        return f"{self.root}{topic}/{directory}/{self._stem(partition, first_offset)}{self.extension}"

    def sidecar_key(self, data_key: str) -> str:
        """Of the file beside it that Spark and Hive pass over."""
        folder, _, name = data_key.rpartition("/")
        return f"{folder}/.{name}.parquet"

    def quarantine_key(self, topic: str, partition: int, first_offset: int) -> str:
        """Of bad messages."""
        again = f".r{self.redriven}" if self.redriven else ""
        return f"{self.folder}quarantine/{topic}/{self._stem(partition, first_offset)}{again}.parquet"

    @property
    def folder(self) -> str:
        """Where the pipeline keeps what is its own."""
        return f"{self.root}_tieredstore/{self.pipeline}/{self.generation}/"

    def _stem(self, partition: int, first_offset: int) -> str:
        return f"{self.generation}_{partition}_{first_offset:020}"

    def claim(self, store: ObjectStore) -> None:
        """Make the generation this pipeline's, or see that it is. ConfigError if it is another's."""
        key = f"{self.root}_tieredstore/generations/{self.generation}.json"
        try:
            store.put(key, json.dumps({"pipeline": self.pipeline}).encode(), if_absent=True)
        except PreconditionFailed:
            owner = loaded_object(store.get(key), key).get("pipeline")
            if owner != self.pipeline:
                raise ConfigError(
                    f"generation {self.generation} of {store.identity}/{self.root} belongs to the pipeline {owner!r}: "
                    "give this one another secor.generation"
                ) from None

    def refuse_strangers(self, store: ObjectStore, topics: Sequence[str]) -> None:
        """ConfigError if there are files of this generation though nobody has committed any."""
        for topic in topics:
            for info in store.list(f"{self.root}{topic}/"):
                match = _NAME.fullmatch(info.key.rpartition("/")[2])
                if match is not None and int(match[1]) == self.generation:
                    raise ConfigError(
                        f"{info.key} is a file of generation {self.generation}, and there is no commit log that says "
                        "so: give this pipeline another secor.generation"
                    )
