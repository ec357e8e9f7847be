"""The meaning of table names in a query: topics, and tables of their contents."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from tieredstore.errors import ConfigError

BATCHES: Final = "$batches"
"""The ending of the table of a topic of batches, if another topic has its name."""

_NAME: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})(?:\$(?P<part>segments|partitions|batches))?")


def parse_table_name(name: str) -> tuple[str, str | None] | None:
    """Split a table's name into the topic and its catalog's table; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match["topic"], match["part"])


def tables_in(node: Any) -> Iterator[str]:
    """Yield the names of tables in the tree of a query, including those of its WITH, which take precedence anyway."""
    if isinstance(node, list):
        for part in cast("Sequence[Any]", node):
            yield from tables_in(part)
    elif isinstance(node, dict):
        known = cast("Mapping[str, Any]", node)
        if known.get("type") == "BASE_TABLE":
            yield str(known["table_name"])
        yield from tables_in(list(known.values()))


def tables_mentioned(sql: str, topics: Sequence[str]) -> list[str]:
    """Return every table that a query may mean if only its text is known: those whose names are in it."""
    names = [topic + part for topic in topics for part in ("", "$segments", "$partitions", "$batches")]
    exact = [name for name in names if name in sql]
    taken, text = {name.lower() for name in exact}, sql.lower()
    return exact + [name for name in names if name.lower() in text and name.lower() not in taken]


def topic_of(name: str, topics: Sequence[str], *, asks_broker: bool) -> str | None:
    """Return the topic of a table's name; SQL ignores case if that is unambiguous."""
    if name in topics:
        return name
    alike = [topic for topic in topics if topic.lower() == name.lower()]
    if len(alike) > 1:
        raise ConfigError(f"{name} may be {' or '.join(alike)}: write the one that is meant, in double quotes")
    if alike:
        return alike[0]
    return name if asks_broker else None


def check_distinct(names: Sequence[str], way_out: str) -> None:
    """Raise ConfigError, with the way out, for names of two topics that SQL treats as one."""
    lower: dict[str, str] = {}
    for name in names:
        other = lower.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(f"the topics {other} and {name} have one name in SQL: {way_out}")


def quotes_missing(sql: str, topics: Sequence[str], words: Collection[str]) -> str:
    """Suggest quotes for a topic in a query whose unquoted name SQL takes for something else, such as its ``words``.

    Empty if there is none.
    """
    odd = [name for name in topics if not name.isidentifier() and name in sql]
    odd += [
        name
        for name in topics
        if name.lower() in words and re.search(rf"\b(?:from|join)\s+{re.escape(name)}\b", sql, re.IGNORECASE)
    ]
    bare = max((name for name in odd if f'"{name}"' not in sql), key=len, default=None)
    return "" if bare is None else f'; write "{bare}", in double quotes'
