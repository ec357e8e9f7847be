"""What the shell offers for a topic, a partition or an offset: names of the bucket, soon, and never a word beside them.

A look at a bucket may take long, and a shell waits for its answer. So a forked child looks, and writes what it learns
into a file of the user's cache folder; the command itself waits a moment for a first answer, and gives what the file
has. Where the moment was too short, the child goes on for some seconds, so that the next attempt has an answer.
"""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from tieredstore.cli.completion_cache import Names

_WAIT_S: Final = 0.8
"""How long the shell waits for a first look, at which half a second of imports begins."""

_LOOK_S: Final = 10
"""How long the child may look, for the next attempt's sake."""

_FRESH_S: Final = 60.0
"""An older answer is given at once, while a child looks again; the next one has that."""

_OLD_S: Final = 86_400.0
"""One that is older than this is given only if no look comes to an end in time."""

_MOST: Final = 1000
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""What Kafka takes as a topic's name. Others may be in a bucket, and a shell would run what they say."""


def complete_topic(ctx: Any, incomplete: str) -> list[str]:
    """The topics whose names begin so."""
    return _begun(_names(ctx, "topics", _look_for_topics), incomplete)


def complete_partition(ctx: Any, incomplete: str) -> list[str]:
    """The topic's partitions; of a list the last one."""
    listed, comma, last = incomplete.rpartition(",")
    topic = _text(ctx, "topic")
    if not topic:
        return []
    names = _names(ctx, f"partitions {topic}", lambda place, until: _look_for_partitions(place, topic, until))
    return [f"{listed}{comma}{name}" for name in _begun(names, last)]


def complete_offset(ctx: Any, incomplete: str) -> list[str]:
    """The offsets that segments of the partition begin at; of the first partition where none is chosen."""
    topic, partition = _text(ctx, "topic"), _text(ctx, "partition") or "0"
    if not topic or not partition.isdecimal():
        return []
    question = f"offsets {topic} {partition}"
    names = _names(ctx, question, lambda place, until: _look_for_offsets(place, topic, int(partition), until))
    return _begun(names, incomplete)


def _look_for_topics(place: Any, until: float) -> Iterable[str]:
    from tieredstore.catalog.names import topic_names

    return topic_names(place.store, place.prefix, until=until)


def _look_for_partitions(place: Any, topic: str, until: float) -> Iterable[str]:
    from tieredstore.catalog.names import partition_numbers

    by_id = partition_numbers(place.store, place.prefix, topic, until=until)
    return map(str, sorted({number for numbers in by_id.values() for number in numbers}))


def _look_for_offsets(place: Any, topic: str, partition: int, until: float) -> Iterable[str]:
    from tieredstore.catalog.names import base_offsets

    return map(str, base_offsets(place.store, place.prefix, topic, partition, most=_MOST, until=until))


def _names(ctx: Any, question: str, look: Callable[[Any, float], Iterable[str]]) -> Names:
    """The answer to a question about the bucket that the options name; none where there is no answer in time."""
    # Nobody who types wants to read what is wrong: the command itself will say so.
    logging.disable(logging.CRITICAL)
    from tieredstore.cli.completion_cache import CompletionCache

    try:
        settings = _text(ctx, "settings") or os.environ.get("TIEREDSTORE_SETTINGS")
        store = _text(ctx, "store")
        if settings is None and store is None:
            return ()
        cache = CompletionCache.of_user(settings, store)
        answer = cache.read(question)
        if answer is None or answer.age_s > _FRESH_S:
            is_usable = answer is not None and answer.age_s <= _OLD_S
            _look_in_child(
                lambda: cache.write(question, _looked_up(settings, store, look)), wait_s=0 if is_usable else _WAIT_S
            )
            answer = answer if is_usable else cache.read(question) or answer
    except Exception:  # noqa: BLE001  whatever it is: there is nothing to offer then
        return ()
    else:
        return () if answer is None else answer.names
    finally:
        logging.disable(logging.NOTSET)


def _looked_up(settings: str | None, store: str | None, look: Callable[[Any, float], Iterable[str]]) -> Names:
    from tieredstore.cli.opened import opened

    until = time.monotonic() + _LOOK_S
    with opened(None if settings is None else Path(settings), store) as place:
        return tuple(name for name in look(place, until) if _LEGAL.fullmatch(name))[: 10 * _MOST]


def _look_in_child(look: Callable[[], object], *, wait_s: float) -> None:
    """Have a child look, and wait until it has or the moment is over."""
    looked, done = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads: those here only wait, and hold no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            _be_nobody()
            look()
        finally:
            # What went wrong nobody hears of, and nothing of the parent's is undone here.
            os._exit(0)
    os.close(done)
    try:
        is_done, _, _ = select.select([looked], [], [], wait_s)
    finally:
        os.close(looked)
    if is_done:
        os.waitpid(child, 0)


def _be_nobody() -> None:
    """In the child: be no part of the terminal's session, say nothing, and end in time."""
    os.setsid()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(signum, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.alarm(_LOOK_S)
    nowhere = os.open(os.devnull, os.O_RDWR)
    # The shell waits for the end of what it reads, and so for everybody who could still write there.
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _text(ctx: Any, name: str) -> str | None:
    """What was typed for a parameter; of several partitions the only one."""
    given: Mapping[str, Any] = ctx.params
    value = given.get(name)
    if value is None and name == "topic" and ctx.args:
        # Behind an option that has no value yet arguments are not taken apart.
        value = ctx.args[0]
    if value is None and name == "partition":
        several = cast("list[str]", given.get("partitions") or [])
        value = several[0] if len(several) == 1 else None
    return None if value is None else str(value)


def _begun(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
