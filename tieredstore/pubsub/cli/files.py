"""Batches as a format of ``tieredstore show``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from tieredstore.cli.records.formats import Asked, Format, Shown, View


def _knows(asked: Asked) -> bool:
    from tieredstore.pubsub.cli import batch_files

    return batch_files.is_batch(asked)


def _show(asked: Asked) -> AbstractContextManager[Shown]:
    from tieredstore.pubsub.cli import batch_files

    return batch_files.show_batch(asked)


FILES: Final = (Format("batches of MemQ", frozenset({View.CONTENTS, View.RECORDS}), _knows, _show),)
