"""The commands of batches on object storage, and how ``show`` shows a batch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from tieredstore.cli.app.table import Entry, Loaded
from tieredstore.cli.records.formats import Asked, Format, Shown, View


def _pubsub() -> Loaded:
    from tieredstore.pubsub.cli import pubsub

    return pubsub.app


def _knows(asked: Asked) -> bool:
    from tieredstore.pubsub.cli import batch_files

    return batch_files.is_batch(asked)


def _show(asked: Asked) -> AbstractContextManager[Shown]:
    from tieredstore.pubsub.cli import batch_files

    return batch_files.show_batch(asked)


COMMANDS: Final = (Entry("pubsub", "Batches of records in a store, in the manner of MemQ.", _pubsub),)
FILES: Final = (Format("batches of MemQ", frozenset({View.CONTENTS, View.RECORDS}), _knows, _show),)
