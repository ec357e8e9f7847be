"""Batches as a format of ``tieredstore show``, and topics of batches for ``restore produce --backup``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.cli.records.formats import Asked, Format, Shown, View

if TYPE_CHECKING:
    from tieredstore.reading.topic_backup import TopicBackup


def _knows(asked: Asked) -> bool:
    from tieredstore.pubsub.cli import records

    return records.is_batch(asked)


def _show(asked: Asked) -> AbstractContextManager[Shown]:
    from tieredstore.pubsub.cli import records

    return records.show_batch(asked)


def _topics(settings: Path, topics: Sequence[str]) -> AbstractContextManager[TopicBackup] | None:
    from tieredstore.config.properties import read_properties

    # Skip a pipeline's settings, because the store that they name is the pipeline's source.
    if "pipeline.name" in read_properties(settings):
        return None
    from tieredstore.pubsub.consume.topic_backup import open_backup

    return open_backup(settings, topics)


FILES: Final = (Format("batches of MemQ", frozenset({View.CONTENTS, View.RECORDS}), _knows, _show, _topics),)
