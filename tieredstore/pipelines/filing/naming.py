"""The names of a generation's files, and who owns a generation."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.errors import ConfigError, ObjectNotFound, PreconditionFailed
from tieredstore.pipelines.filing.places import Places
from tieredstore.pipelines.log.entries import loaded_object

_logger: Final = logging.getLogger(__name__)

OWN_FOLDER: Final = "_tieredstore"
"""Below the root, beside the topics."""
_NAME: Final = re.compile(r"(\d{1,9})_(\d{1,10})_(\d{20})(\..+)?")


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

    @property
    def claim_keys(self) -> list[str]:
        """Of what says whose the generation is, below each root."""
        return [f"{root}{OWN_FOLDER}/generations/{self.generation}.json" for root in self.places.roots]

    def claim(self, store: ObjectStore) -> None:
        """Make the generation this pipeline's, or see that it is. ConfigError if it is another's."""
        for root, key in zip(self.places.roots, self.claim_keys, strict=True):
            # Where files lie below another root too, it says which one has the log.
            elsewhere = {} if root == self.root else {"root": self.root}
            try:
                store.put(key, json.dumps({"pipeline": self.pipeline, **elsewhere}).encode(), if_absent=True)
            except PreconditionFailed:
                self._refuse_other(store, root, key)

    def is_claimed(self, store: ObjectStore) -> bool:
        """Whether the generation is this pipeline's; ConfigError if it is another's."""
        for root, key in zip(self.places.roots, self.claim_keys, strict=True):
            try:
                self._refuse_other(store, root, key)
            except ObjectNotFound:
                return False
        return True

    def _refuse_other(self, store: ObjectStore, root: str, key: str) -> None:
        owner = loaded_object(store.get(key), key)
        if (owner.get("pipeline"), owner.get("root", root)) != (self.pipeline, self.root):
            raise ConfigError(
                f"generation {self.generation} of {store.identity}/{root} belongs to the pipeline "
                f"{owner.get('pipeline')!r}: give this one another secor.generation, or check pipeline.name"
            ) from None

    def check_root(self, store: ObjectStore, *, is_new: bool) -> None:
        """ConfigError for a new output whose root would run together with the names of topics.

        What was begun so goes on, with a warning, as do other generations of that root.
        """
        root = self.root
        if not root or root.endswith("/"):
            return
        said = f"output.key.prefix is {root!r}, without a slash behind it, so that a topic's files lie in {root}TOPIC/"
        if is_new and next(iter(store.list(f"{root}{OWN_FOLDER}/")), None) is None:
            raise ConfigError(f"{said}: give {root}/")
        _logger.warning("%s, as those that are there do", said)

    def refuse_strangers(self, store: ObjectStore, topics: Sequence[str]) -> None:
        """ConfigError if there are files of this generation though nobody has committed any."""
        for info in self.places.listed(store, topics):
            match = _NAME.fullmatch(info.key.rpartition("/")[2])
            if match is not None and int(match[1]) == self.generation:
                raise ConfigError(
                    f"{info.key} is a file of generation {self.generation}, and there is no commit log that says "
                    "so: give this pipeline another secor.generation"
                )
