"""The error for a topic or partition that does not exist. It suggests similar names, or another key prefix."""

from __future__ import annotations

import difflib
import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tieredstore.backends.base import ObjectStore
from tieredstore.catalog.names import partition_numbers, topic_names
from tieredstore.errors import ResourceNotFoundError, TieredStoreError, TopicNotFoundError, excerpt
from tieredstore.format.keys import parse_key
from tieredstore.model import Uuid
from tieredstore.places.record import layout_hint

_LOOK_S: Final = 2.0
"""Limit, in seconds, of the search for similar names, so that the error is raised soon."""

_LIKE: Final = 3
"""Number of similar names to show."""

_SHOWN: Final = 10

_PAGE: Final = 1000
"""The number of keys that the search for another prefix reads from each listing. One request returns at most this many
keys."""

_BEGINNINGS: Final = 8
"""If the first page of the bucket has no segment, list at most this many shortened forms of the prefix."""

_IN_BUCKET: Final = "in the bucket"


def absence(
    store: ObjectStore,
    prefix: str,
    missing: Mapping[str, Sequence[int]],
    *,
    topic_id: Uuid | None = None,
    live: Mapping[str, Sequence[int]] | None = None,
) -> ResourceNotFoundError:
    """Return the error for requested topics, or partitions of topics, that do not exist.

    ``missing`` maps each topic to its missing partitions, or to an empty sequence if the whole topic was requested.
    ``live`` are the partitions of the broker's topics, None without a broker. Spend at most two seconds on listing
    names in the bucket.
    """
    until = time.monotonic() + _LOOK_S
    where = _IN_BUCKET if live is None else f"{_IN_BUCKET} or on the broker"
    absent: list[str] = []
    sentences: list[str] = []
    for topic, partitions in missing.items():
        ids = partition_numbers(store, prefix, topic, until=until)
        if topic_id is not None and ids and topic_id not in ids:
            shown = ", ".join(map(str, ids))
            sentences.append(f"topic {_quote(topic)} has no id {topic_id} {_IN_BUCKET}; there it has {shown}")
            continue
        own = ids if topic_id is None else {topic_id: ids.get(topic_id, [])}
        there = {*(live or {}).get(topic, ()), *(number for numbers in own.values() for number in numbers)}
        if not there:
            absent.append(topic)
        elif not partitions:
            sentences.append(f"topic {_quote(topic)} has objects {where}, but no segment that can be used")
        else:
            # Do not suggest the requested partition itself, because its objects may be incomplete segments, or belong
            # to a deleted topic of the same name.
            sentences.append(_absent_partitions(topic, partitions, there - set(partitions), where))
    if absent:
        stored = topic_names(store, prefix, until=until)
        sentences.insert(0, _absent_topics(absent, {*stored, *(live or ())}, where))
        if not stored and (hint := prefix_hint(store, prefix)):
            sentences.append(f"segments: {hint}")
        sentences += layout_hint(store, prefix)
    return (TopicNotFoundError if absent else ResourceNotFoundError)("; ".join(sentences))


def prefix_hint(store: ObjectStore, prefix: str) -> str:
    """Return a sentence that names another prefix with segments, or an empty text.

    Call this if no segment's key begins with ``prefix``, the configured ``key.prefix``.

    The search takes at most nine requests. The first request reads the first page of the bucket. If the bucket has more
    pages, up to eight requests follow. They list by the prefix without its last character, without its last two
    characters, and so on. If the store refuses to list, return no hint.
    """
    longest = [prefix[:length] for length in range(len(prefix) - 1, 0, -1)][:_BEGINNINGS]
    try:
        for beginning in ("", *longest):
            infos = list(itertools.islice(store.list(beginning), _PAGE))
            found = {other for info in infos if (other := _prefix_of(info.key)) is not None} - {prefix}
            if found:
                nearest = max(sorted(found), key=lambda one: difflib.SequenceMatcher(None, prefix, one).ratio())
                return f"none {_place(prefix)}; there are some {_place(nearest)}"
            if not beginning and len(infos) < _PAGE:
                break
    except TieredStoreError:
        return ""
    return ""


def _prefix_of(key: str) -> str | None:
    """Return the prefix before the topic's folder, if ``key`` is the key of a segment's object."""
    folders = key.rsplit("/", 3)[:-3]
    prefix = f"{folders[0]}/" if folders else ""
    return prefix if parse_key(prefix, key) is not None else None


def _place(prefix: str) -> str:
    return f"under {_quote(prefix)}" if prefix else "without a prefix"


def ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges: ``0 to 2, 5``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    left = len(runs) - _SHOWN
    more = "" if left <= 0 else " and one range more" if left == 1 else f" and {left} ranges more"
    return ", ".join(" to ".join(map(str, run)) for run in runs[:_SHOWN]) + more


def _absent_topics(absent: Sequence[str], known: Iterable[str], where: str) -> str:
    names = ", ".join(map(_quote, absent[:_SHOWN]))
    more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    subject = f"there is no topic {names}" if len(absent) == 1 else f"there are no topics {names}{more}"
    like = sorted({name for topic in absent[:_SHOWN] for name in _like(topic, set(known) - set(absent))})
    meant = f"did you mean {' or '.join(map(_quote, like))}?" if like else "check the name and key.prefix"
    return f"{subject} {where}; {meant}"


def _like(topic: str, known: Iterable[str]) -> list[str]:
    """Return the most similar names. If one name differs only in case, return only this name."""
    by_folded: dict[str, str] = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(topic.casefold(), by_folded, n=_LIKE)
    return [by_folded[name] for name in near][: 1 if topic.casefold() in by_folded else _LIKE]


def _absent_partitions(topic: str, missing: Sequence[int], there: Collection[int], where: str) -> str:
    numbers = ranges(missing)
    noun = "partition" if numbers.isdecimal() else "partitions"
    others = f"only {ranges(there)}" if there else "nor any other that can be used"
    return f"topic {_quote(topic)} has no {noun} {numbers} {where}, {others}"


def _quote(name: str) -> str:
    return repr(excerpt(name, 249))
