"""Topics as Arrow streams, DuckDB tables and Polars frames. Needs ``tieredstore[arrow]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes, topic_schema
    from tieredstore.query.topic_read import ReadPlan, TopicRead
    from tieredstore.query.topic_scan import read_topic

__all__ = ["TOPIC_COLUMNS", "ColumnTypes", "ReadPlan", "TopicRead", "read_topic", "topic_schema"]


def __getattr__(name: str) -> object:
    """Import a module on first use of its name, because the commands' help needs only names of formats, but not
    pyarrow."""
    match name:
        case "TOPIC_COLUMNS" | "ColumnTypes" | "topic_schema":
            from tieredstore.query import topic_columns  # noqa: PLC0415  see above

            return getattr(topic_columns, name)
        case "ReadPlan" | "TopicRead":
            from tieredstore.query import topic_read  # noqa: PLC0415

            return getattr(topic_read, name)
        case "read_topic":
            from tieredstore.query import topic_scan  # noqa: PLC0415

            return topic_scan.read_topic
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
