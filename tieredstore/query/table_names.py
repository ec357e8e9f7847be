"""Resolves table names in a query: to topics, and to tables of their segments, partitions or batches."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, cast

from tieredstore.errors import ConfigError

BATCHES: Final = "$batches"
"""Suffix of a batch topic's table. It distinguishes the table from that of a topic of segments with the same name."""

_NAME: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})(?:\$(?P<part>segments|partitions|batches))?")


def parse_table_name(name: str) -> tuple[str, str | None] | None:
    """Split a table name into a topic and the part after ``$``; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match["topic"], match["part"])


def tables_in(node: object) -> Iterator[str]:
    """Yield the table names in a query's syntax tree, and also names that WITH defines. These do no harm, because SQL
    prefers them to tables.
    """
    if isinstance(node, list):
        for part in cast("Sequence[object]", node):
            yield from tables_in(part)
    elif isinstance(node, dict):
        known = cast("Mapping[str, object]", node)
        if known.get("type") == "BASE_TABLE":
            yield str(known["table_name"])
        yield from tables_in(list(known.values()))


def tables_mentioned(sql: str, topics: Sequence[str]) -> list[str]:
    """Return every table of a topic whose name occurs in the query's text, for queries that cannot be parsed."""
    names = [topic + part for topic in topics for part in ("", "$segments", "$partitions", "$batches")]
    exact = [name for name in names if name in sql]
    taken, text = {name.lower() for name in exact}, sql.lower()
    return exact + [name for name in names if name.lower() in text and name.lower() not in taken]


def topic_of(name: str, topics: Sequence[str], *, asks_broker: bool) -> str | None:
    """Return the topic that a table name means: the topic of this name or, ignoring case, the only topic that
    matches."""
    if name in topics:
        return name
    alike = [topic for topic in topics if topic.lower() == name.lower()]
    if len(alike) > 1:
        raise ConfigError(f"{name} may be {' or '.join(alike)}: write the one that is meant, in double quotes")
    if alike:
        return alike[0]
    return name if asks_broker else None


def check_distinct(names: Sequence[str], way_out: str) -> None:
    """Raise ConfigError, with the advice ``way_out``, for two names that differ only in case."""
    lower: dict[str, str] = {}
    for name in names:
        other = lower.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(f"the topics {other} and {name} have one name in SQL: {way_out}")


def quotes_missing(sql: str, topics: Sequence[str], words: Collection[str]) -> str:
    """Return advice to quote a topic's name if SQL does not take the name as such, for example because it is in
    ``words`` (the keywords).

    Return an empty text if no topic needs quotes.
    """
    odd = [name for name in topics if not name.isidentifier() and name in sql]
    odd += [
        name
        for name in topics
        if name.lower() in words and re.search(rf"\b(?:from|join)\s+{re.escape(name)}\b", sql, re.IGNORECASE)
    ]
    bare = max((name for name in odd if f'"{name}"' not in sql), key=len, default=None)
    return "" if bare is None else f'; write "{bare}", in double quotes'
