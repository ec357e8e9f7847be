"""What a member of a group is asked for by ``cat --group``; the consumer reads it, which the core does not import.

It lies apart from the command, whose module the consumer does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.api.reading import ReadOptions
    from tieredstore.config import Settings
    from tieredstore.model import AtTime, Last


@dataclass(frozen=True, slots=True)
class GroupRead:
    """The records of a topic as a member of ``group`` gets them.

    ``start`` is where partitions begin of which the group has committed nothing. Without ``follows`` it ends when each
    partition was read to its end.
    """

    settings: Settings
    client: Mapping[str, str]
    topic: str
    group: str
    start: int | AtTime | Last | None
    how: ReadOptions
    follows: bool
