"""What the names of tables in a query mean: topics, and tables of what there is of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from tieredstore.errors import ConfigError

BATCHES: Final = "$batches"
"""The ending of the table of a topic of batches, where another topic has its name."""

_NAME: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})(?:\$(?P<part>segments|partitions|batches))?")


def parse_table_name(name: str) -> tuple[str, str | None] | None:
    """The topic that a table's name is of, and which of its catalog's tables it names; None for no topic's."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match["topic"], match["part"])


def tables_in(node: Any) -> Iterator[str]:
    """The names of tables in the tree of a query; those of its WITH among them, which come before others anyway."""
    if isinstance(node, list):
        for part in cast("Sequence[Any]", node):
            yield from tables_in(part)
    elif isinstance(node, dict):
        known = cast("Mapping[str, Any]", node)
        if known.get("type") == "BASE_TABLE":
            yield str(known["table_name"])
        yield from tables_in(list(known.values()))


def tables_mentioned(sql: str, topics: Sequence[str]) -> list[str]:
    """Every table that a query may mean of which only the text is known: those whose names stand in it."""
    names = [topic + part for topic in topics for part in ("", "$segments", "$partitions", "$batches")]
    exact = [name for name in names if name in sql]
    taken, text = {name.lower() for name in exact}, sql.lower()
    return exact + [name for name in names if name.lower() in text and name.lower() not in taken]


def topic_of(name: str, topics: Sequence[str], *, asks_broker: bool) -> str | None:
    """The topic that a table's name means; SQL does not tell capitals apart where that is not needed."""
    if name in topics:
        return name
    alike = [topic for topic in topics if topic.lower() == name.lower()]
    if len(alike) > 1:
        raise ConfigError(f"{name} may be {' or '.join(alike)}: write the one that is meant, in double quotes")
    if alike:
        return alike[0]
    return name if asks_broker else None


def check_distinct(names: Sequence[str], way_out: str) -> None:
    """ConfigError, with the way out of it, for names of two topics that SQL takes for one."""
    lower: dict[str, str] = {}
    for name in names:
        other = lower.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(f"the topics {other} and {name} have one name in SQL: {way_out}")


def quotes_missing(sql: str, topics: Sequence[str], words: Collection[str]) -> str:
    """What to write where a query has a topic as it is, of a name that SQL takes for something else, as its ``words``.

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
