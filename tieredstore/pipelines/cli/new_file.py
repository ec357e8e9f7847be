"""``tieredstore pipeline init``: a commented file for the most common pipeline, JSON to Parquet by hour.

This module is separate from ``pipeline``, because this command reads a bucket and writes a settings file, not an
output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tieredstore.cli.app.options import Cluster, Store
from tieredstore.cli.terminal.output import print_lines, quantity
from tieredstore.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


def init(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to write.")],
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="Where the files go: a folder, s3://bucket/prefix, gs://…, az://…")
    ],
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The new settings file.")] = None,
    *,
    store: Store,
    cluster: Cluster,
) -> None:
    """Write the commented file of a pipeline that keeps JSON as Parquet by hour, with columns from a sample.

    The columns are the fields of the topic's latest records. If the records have no fields in common, the pipeline
    keeps raw values, and a comment says why. The new file is FILE, by default TOPIC-by-hour.properties. It contains the
    bucket's settings, so only its owner can read it. The command never changes an existing file.

    Example: tieredstore pipeline init orders files -c store.properties
    """
    path = Path(f"{topic}-by-hour.properties") if file is None else file
    if path.exists():
        raise ConfigError(f"{path} exists already, and init never changes a file: choose another one with --file")
    from tieredstore.cli.records.value_types import latest_messages
    from tieredstore.ops.keys.pairs import write_new
    from tieredstore.values.json_text import infer_schema

    with store.open(cluster) as bucket:
        messages = latest_messages(bucket, topic, "value", {})
    sample = f"{quantity(len(messages), 'record')} of {topic}"
    schema: pa.Schema | None = None
    reason = ""
    try:
        schema = infer_schema(messages)
    except ConfigError as error:
        reason = f"The values of {sample} have no fields in common: {error}."
    client = dict(cluster.client() or {})
    stored = {f"output.{name}": text for name, text in _properties_of(output).items() if name.startswith("storage.")}
    text = _text(topic, _describe_columns(topic, sample, schema, reason), _bucket_of(store), client, stored)
    write_new(path, text.encode("latin-1"), mode=0o600)
    columns = "raw values" if schema is None else f"{quantity(len(schema), 'column')} inferred from {sample}"
    print_lines([f"{path}: JSON to Parquet by hour, {columns}", f"next: tieredstore pipeline run {path} --once"])


def _bucket_of(store: Store) -> dict[str, str]:
    from tieredstore.config.properties import bucket_properties

    properties = {} if store.settings is None else bucket_properties(store.settings)[0]
    return properties if store.url is None else properties | _properties_of(store.url)


def _properties_of(url: str) -> dict[str, str]:
    """Return the store settings for a URL or a folder."""
    from tieredstore.remote.stores import NamedStore, find_store

    found = find_store({}, store=url)
    assert isinstance(found, NamedStore)  # find_store returns other types only for loaded settings
    return dict(found.properties)


_Chapter: TypeAlias = tuple[tuple[str, ...], Mapping[str, str]]
"""The lines of a comment, and the properties below it."""


def _describe_columns(topic: str, sample: str, schema: pa.Schema | None, reason: str) -> _Chapter:
    from tieredstore.values.ddl import format_ddl

    if schema is None:
        return (reason, f"To get columns, set columns=json and json.schema.{topic}=NAME TYPE, NAME TYPE."), {}
    comment = f"A column for each field, inferred from {sample}; other fields are kept in the column _rest."
    return (comment,), {"columns": "json", f"json.schema.{topic}": format_ddl(schema)}


def _text(
    topic: str, columns: _Chapter, bucket: Mapping[str, str], client: Mapping[str, str], output: Mapping[str, str]
) -> str:
    """Return the text of the file: groups of properties, each below its comment."""
    chapters: list[_Chapter] = [
        (("JSON to Parquet by hour. All settings: docs/reference/pipeline-settings.md.",), {}),
        (
            ("Name and generation identify the output: a run continues where the last run of this output ended.",),
            {"pipeline.name": f"{topic}-by-hour", "secor.generation": "1"},
        ),
        (("The topics, as a regular expression.",), {"secor.kafka.topic_filter": re.escape(topic).replace("\\-", "-")}),
        (
            (
                "Directories dt=.../hr=... by the record's timestamp. For a time in a field of the value:",
                "secor.message.parser.class=json and message.timestamp.name=FIELD.",
            ),
            {"secor.message.parser.class": "kafka-timestamp", "partitioner.granularity.hour": "true"},
        ),
        columns,
        (
            ("A file ends at this size, or when its oldest record is this old.",),
            {"secor.max.file.size.bytes": "200000000", "secor.max.file.age.seconds": "600"},
        ),
        (("The bucket to read.",), bucket),
        (
            ("Brokers, for records that are not in the bucket yet: kafka.bootstrap.servers=HOST:PORT.",),
            {f"kafka.{name}": text for name, text in client.items()},
        ),
        (("Where the files go.",), output),
    ]
    import javaproperties

    blocks = (
        [
            *(f"# {line}" for line in comment),
            *(javaproperties.join_key_value(name, text) for name, text in given.items()),
        ]
        for comment, given in chapters
    )
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"
