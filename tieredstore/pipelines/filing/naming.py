"""The names of a generation's files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from tieredstore.errors import ConfigError
from tieredstore.pipelines.filing.places import Places

OWN_FOLDER: Final = "_tieredstore"
"""Below the root, beside the topics."""
_NAME: Final = re.compile(r"(\d{1,9})_(\d{1,10})_(\d{20})(\..*)?")


class FileName(NamedTuple):
    """What the name of a file says."""

    generation: int
    partition: int
    offset: int


def parse_name(key: str, *, or_beside: bool = False) -> FileName | None:
    """Read the name of a file of records, or of one beside it if these count too; None for any other key."""
    name = key.rpartition("/")[2]
    match = _NAME.fullmatch(name.removeprefix(".") if or_beside else name)
    return None if match is None else FileName(*map(int, match.groups()[:3]))


def own_folder(root: str, pipeline: str, generation: int) -> str:
    """Where a pipeline keeps what is its own, of one generation."""
    return f"{root}{OWN_FOLDER}/{pipeline}/{generation}/"


@dataclass(frozen=True, slots=True)
class Naming:
    """``<root><topic>/<partitions>/<generation>_<kafkaPartition>_<first offset><extension>``."""

    places: Places
    pipeline: str
    generation: int
    extension: str
    redriven: int = 0
    """How often the bad messages in a file of these were parsed again."""
    by_window: bool = False
    """Whether the first file of a window in a directory has the window's first offset in its name, as Secor's have."""

    @property
    def root(self) -> str:
        """What topics and the pipeline's own folder lie below."""
        return self.places.root

    def named_offset(self, first_offset: int, window_start: int, *, is_first: bool) -> int:
        """The offset in the name of a file of a window, by whether it is the first one in its directory.

        Later ones there have that of their own first record, which is none of any other file. So do messages that were
        put aside: where their window starts, a file of good ones is named.
        """
        return window_start if self.by_window and is_first and not self.redriven else first_offset

    def data_key(self, topic: str, directory: str, partition: int, offset: int) -> str:
        """Of a file of records, by its :meth:`named_offset`.

        ConfigError for a topic whose directory is what pipelines keep for themselves.
        """
        if topic == OWN_FOLDER:
            raise ConfigError(
                f"the topic {topic} cannot be kept: the directory of this name is the pipelines' own; leave it out by "
                "secor.kafka.topic_blacklist"
            )
        again = self._again if self.by_window else ""
        return f"{self.places.path(topic, directory)}/{self._stem(partition, offset)}{again}{self.extension}"

    def sidecar_key(self, data_key: str) -> str:
        """Of the file beside it that Spark and Hive pass over."""
        folder, _, name = data_key.rpartition("/")
        return f"{folder}/.{name}.parquet"

    def quarantine_key(self, topic: str, partition: int, first_offset: int) -> str:
        """Of bad messages."""
        return f"{self.folder}quarantine/{topic}/{self._stem(partition, first_offset)}{self._again}.parquet"

    @property
    def folder(self) -> str:
        """Where the pipeline keeps what is its own."""
        return own_folder(self.root, self.pipeline, self.generation)

    @property
    def _again(self) -> str:
        return f".r{self.redriven}" if self.redriven else ""

    def _stem(self, partition: int, first_offset: int) -> str:
        return f"{self.generation}_{partition}_{first_offset:020}"
