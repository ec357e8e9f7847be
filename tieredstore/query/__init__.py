"""Topics where people compute: streams of Arrow, tables of DuckDB, frames of Polars. Needs ``tieredstore[arrow]``."""

from __future__ import annotations

from tieredstore.query.topic_columns import TOPIC_COLUMNS, ColumnTypes, topic_schema
from tieredstore.query.topic_read import ReadPlan, TopicRead
from tieredstore.query.topic_scan import read_topic

__all__ = ["TOPIC_COLUMNS", "ColumnTypes", "ReadPlan", "TopicRead", "read_topic", "topic_schema"]
