"""Followed partitions: segments that the leader has not shipped yet stay pinned here, since this broker may lead next.

Retention deletes the same segments from all replicas. What a dying leader has not shipped would otherwise be gone from
the next leader's disk too, before its uploader has begun.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.errors import ConfigError, CorruptData
from tieredstore.uploader.partition import Partition, Role
from tieredstore.uploader.settled import high_watermarks
from tieredstore.uploader.target import Target

_logger: Final = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 960.0
_AT_ONCE: Final = 50
"""Watermarks read in one round, so that thousands of new partitions do not ask at once."""


@dataclass(slots=True)
class _Asked:
    """When a partition's watermark is read next, and the pause before that."""

    again_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S


class FollowedPartitions:
    """Read the watermarks of followed partitions at a slow rate, and unpin what they have passed. For one thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._asked: dict[Partition, _Asked] = {}

    def release(self, target: Target, partitions: Iterable[Partition]) -> None:
        """Ask once a minute for each followed partition that holds a closed segment, less often where nothing moves.

        Raises StoreError if the store fails; nothing is unpinned then.
        """
        followed = [partition for partition in partitions if partition.role is Role.FOLLOWED]
        self._asked = {partition: self._asked.get(partition) or _Asked() for partition in followed}
        _mark_replicated(followed)
        now_s = self._monotonic()
        # Only where there is a closed segment that is not known to be shipped.
        due = [partition for partition in followed if self._asked[partition].again_s <= now_s and partition.first]
        # Unknown partitions first.
        due.sort(key=lambda partition: (partition.shipped is not None, self._asked[partition].again_s))
        for partition in due[:_AT_ONCE]:
            self._ask(target, partition)

    def _ask(self, target: Target, partition: Partition) -> None:
        asked, before = self._asked[partition], partition.shipped
        try:
            watermark = target.watermarks.peek(partition.where)
        except (CorruptData, ConfigError) as error:
            # The leader's uploader repairs it, or says what to do.
            _logger.info("%s", error)
            watermark, passed = None, before or 0
        else:
            passed = 0 if watermark is None else watermark.next_offset
        partition.pass_to(passed, [] if watermark is None else watermark.missing_extents)
        asked.pause_s = _FIRST_PAUSE_S if passed != before else min(_LONGEST_PAUSE_S, 2 * asked.pause_s)
        asked.again_s = self._monotonic() + asked.pause_s * (0.5 + random.random() / 2)  # noqa: S311


def _mark_replicated(followed: Iterable[Partition]) -> None:
    """Mark segments below the broker's high watermark checkpoint as replicated: no clean election takes them back."""
    highs: dict[Path, dict[tuple[str, int], int]] = {}
    for partition in followed:
        folder = partition.folder
        if folder is None or not any(one.is_pinned and not one.is_replicated for one in partition.pending()):
            continue
        log_dir = folder.parent
        if log_dir not in highs:
            highs[log_dir] = high_watermarks(log_dir) or {}
        partition.mark_replicated(highs[log_dir].get(partition.name, 0))
