"""Shell completion of topics, partitions and offsets, with names from the bucket.

The shell waits for the names, so ``entry`` limits the time. Errors never reach the screen.

The module ``options`` only refers to these functions. This module is separate, because completion opens a bucket.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

import typer

from tieredstore.model import can_be_topic

if TYPE_CHECKING:
    from tieredstore.ops.bucket import Bucket

LOOK_S: Final = 2.0
"""The seconds after which no further names are listed. The names listed so far are offered."""

_MOST: Final = 1000
"""The most offsets that are offered."""


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the topics with this prefix."""
    return _offer(ctx, incomplete)


def complete_partition(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the topic's partitions. In a comma-separated list complete the last one."""
    listed, comma, last = incomplete.rpartition(",")
    topic = _topic(ctx)
    return [f"{listed}{comma}{name}" for name in _offer(ctx, last, topic)] if topic else []


def complete_offset(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the base offsets of the partition's segments. If no partition is given, use the first one."""
    topic, partition = _topic(ctx), _text(ctx, "partition", "partitions") or "0"
    return _offer(ctx, incomplete, topic, int(partition)) if topic and partition.isdecimal() else []


def _topic(ctx: typer.Context) -> str | None:
    """Return the last topic typed."""
    topics = _texts(ctx, "topic", "topics")
    # If the parser assigned no topic, use the last argument. After an option without a value, the parser assigns no
    # topic.
    return next(reversed(topics or [str(each) for each in ctx.args]), None)


def _text(ctx: typer.Context, *names: str) -> str | None:
    """Return the value of the first parameter in ``names`` that the user gave. Return None if this parameter has
    several values."""
    given = _texts(ctx, *names)
    return given[0] if len(given) == 1 else None


def _texts(ctx: typer.Context, *names: str) -> list[str]:
    for value in map(ctx.params.get, names):
        if isinstance(value, list | tuple) and value:
            return [str(each) for each in cast("Iterable[object]", value)]
        if value is not None and not isinstance(value, list | tuple):
            return [str(value)]
    return []


def _offer(ctx: typer.Context, incomplete: str, topic: str | None = None, partition: int | None = None) -> list[str]:
    """Offer names from the bucket that the options name. Offer nothing if the bucket cannot be read."""
    settings, store = _text(ctx, "settings") or os.environ.get("TIEREDSTORE_SETTINGS"), _text(ctx, "url", "store")
    if settings is None and store is None:
        return []
    from tieredstore.ops.bucket import open_bucket
    from tieredstore.remote.stores import settings_of

    # Discard errors and log lines, because they must not appear while the user types. The command itself reports them.
    with (
        contextlib.suppress(Exception),
        contextlib.redirect_stderr(io.StringIO()),
        open_bucket(settings_of(settings, store=store)) as place,
    ):
        return [name for name in legal_names(_look_up(place, topic, partition)) if name.startswith(incomplete)]
    return []


def _look_up(place: Bucket, topic: str | None, partition: int | None) -> Iterable[str]:
    from tieredstore.catalog import names

    until = time.monotonic() + LOOK_S
    if topic is None:
        return names.topic_names(place.store, place.prefix, until=until)
    if partition is not None:
        return map(str, names.base_offsets(place.store, place.prefix, topic, partition, most=_MOST, until=until))
    by_id = names.partition_numbers(place.store, place.prefix, topic, until=until)
    return map(str, sorted({number for numbers in by_id.values() for number in numbers}))


def legal_names(names: Iterable[str]) -> list[str]:
    """Drop names that Kafka does not allow. A bucket may contain any name, and a shell could run a command in the
    name."""
    return [name for name in names if can_be_topic(name)]
