"""Types of keys and values from ``--key`` and ``--value``, for all topics or for single ones.

This module is separate from ``options``, because the options do not need pyarrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from tieredstore.cli.terminal.output import complain, quantity
from tieredstore.errors import ConfigError, ResourceNotFoundError, excerpt
from tieredstore.process.whole_files import read_named

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.api.reading import QueryOptions, ReadOptions
    from tieredstore.cli.app.options import Values
    from tieredstore.query.topic_columns import ColumnTypes
    from tieredstore.schema_registry import SchemaRegistry
    from tieredstore.values import OnInvalid, ValueType

_OF_TOPIC: Final = re.compile(r"([A-Za-z0-9._-]+)=(.*)", re.DOTALL)
_ALL: Final = ""

Sample: TypeAlias = "Callable[[str, Literal['key', 'value']], Sequence[bytes]]"
"""A function that returns some of a topic's keys or values."""

_Kind: TypeAlias = "Callable[[str, Sample | None], ValueType]"
"""A function from a subject of the registry (a topic's name with ``-key`` or ``-value``) and a sample to a type."""

_SAMPLE: Final = 2_000
_SAMPLE_OF_PARTITION: Final = 200


class TopicTypes:
    """The types of topics' keys and values, as a function of the topic. Counts the invalid values that are read as
    null.
    """

    def __init__(self, values: Values, default: Literal["bytes", "text"], *, alone: str | None = None) -> None:
        """Read schema files at once, a registry only when a topic is requested.

        ``alone`` is the only topic that will be read. Raise ConfigError for unknown types, and for types of another
        topic.
        """
        from tieredstore.values import InvalidValues

        self._invalid: OnInvalid = values.invalid
        self._registry = open_registry(values.registry, values.registry_config)
        self._nulls = InvalidValues()
        self._keys, self._values = (
            _parse_side(option, texts or (), alone, partial(self._parse_kind, option), default)
            for option, texts in (("--key", values.key), ("--value", values.value))
        )
        given = *(values.key or ()), *(values.value or ())
        if self._registry is not None and not any("avro" in text for text in given):
            raise ConfigError(
                "a registry has schemas for Avro: add --value avro or --key avro, or leave the registry out"
            )

    def __call__(self, topic: str, sample: Sample | None = None) -> ColumnTypes:
        """Return the types of a topic.

        With ``sample``, the type ``json`` becomes a struct of the fields in a sample, and its schema is printed.
        Without ``sample``, JSON stays text.
        """
        from tieredstore.query.topic_columns import ColumnTypes

        key, value = (side.get(topic, side[_ALL]) for side in (self._keys, self._values))
        return ColumnTypes(key(f"{topic}-key", sample), value(f"{topic}-value", sample))

    def tell_nulls(self) -> None:
        """Report on stderr how many values were read as null, and the reason for the first such value."""
        if self._nulls.count:
            complain(f"{quantity(self._nulls.count, 'invalid value')} read as null; the first: {self._nulls.first}")

    def _parse_kind(self, option: str, text: str) -> _Kind:
        from tieredstore.api.reading import kind_of
        from tieredstore.values import Avro, Json

        way_out = f"read it as bytes ({option} bytes), or as null (--invalid null)"
        name, _, file = text.partition(":")
        if file and name == "json":
            from tieredstore.values.json_text import parse_json_schema

            schema = parse_json_schema(_read_text(Path(file)))
            of_file = Json(schema, self._invalid, way_out=way_out, nulls=self._nulls)
            return lambda _, __: of_file
        if file and name == "avro":
            of_schema = Avro(_read_text(Path(file)), self._registry, self._invalid, way_out=way_out, nulls=self._nulls)
            return lambda _, __: of_schema
        if text == "avro" and self._registry is None:
            raise ConfigError(f"no Avro schema is given for {option} avro: write avro:FILE, or give --registry URL")
        kind = kind_of(text, self._registry, self._invalid, way_out, self._nulls)
        if kind is None:
            raise ConfigError(
                f"{option} is {excerpt(text)!r}; it must be bytes, text, json, json:FILE, avro:FILE or avro; for one "
                "topic, give orders=text"
            )
        return partial(self._infer_kind, option, kind) if text == "json" else lambda subject, _: kind(subject)

    def _infer_kind(
        self, option: str, as_text: Callable[[str], ValueType], subject: str, sample: Sample | None
    ) -> ValueType:
        """Return a struct of the fields in a sample, and print its schema. If there are no common fields, return
        ``as_text``.
        """
        from tieredstore.values import Json
        from tieredstore.values.json_text import format_json_schema, infer_schema

        topic, _, side = subject.rpartition("-")
        messages = () if sample is None else sample(topic, "key" if side == "key" else "value")
        if not messages:
            return as_text(subject)
        sampled = f"{quantity(len(messages), 'record')} of {topic}"
        try:
            schema = infer_schema(messages)
        except ConfigError as error:
            complain(f"{side}s in {sampled} have no schema in common, and stay JSON text: {error}")
            return as_text(subject)
        complain(
            f"{side}s have the schema inferred from {sampled}; save it to give {option} json:FILE:\n"
            + format_json_schema(schema)
        )
        way_out = f"give a schema ({option} json:FILE), read it as text ({option} text), or as null (--invalid null)"
        return Json(schema, self._invalid, way_out=way_out, nulls=self._nulls, is_closed=True)


def _parse_side(
    option: str, texts: Sequence[str], alone: str | None, parse: Callable[[str], _Kind], default: str
) -> Mapping[str, _Kind]:
    """Return the types of keys or of values, by topic."""
    kinds: dict[str, str] = {}
    for text in texts:
        named = _OF_TOPIC.fullmatch(text)
        topic, kind = (named[1], named[2]) if named else (_ALL, text)
        if topic in kinds:
            raise ConfigError(f"{option} is given twice for {topic or 'all topics'}: give one of them")
        if alone is not None and topic not in (_ALL, alone):
            raise ConfigError(
                f"{option} is given for {topic}, but the command reads {alone}: name {alone}, or no topic"
            )
        kinds[topic] = kind
    return {topic: parse(kind) for topic, kind in ({_ALL: default} | kinds).items()}


def sample_of(bucket: Bucket, how: QueryOptions, topic_ids: Mapping[str, str] | None = None) -> Sample:
    """Return a function that reads the latest keys or values of a topic. For a topic of batches it returns no values.

    ``how`` has the options with which the command itself reads. ``topic_ids`` choose between topics of the same name.
    """

    def sample(topic: str, side: Literal["key", "value"]) -> Sequence[bytes]:
        options = cast("ReadOptions", how.copy())
        if topic_ids is not None:
            options["topic_id"] = topic_ids.get(topic)
        try:
            return latest_messages(bucket, topic, side, options)
        except ResourceNotFoundError:
            return ()  # the command's own read refuses a topic that does not exist

    return sample


def latest_messages(bucket: Bucket, topic: str, side: Literal["key", "value"], how: ReadOptions) -> list[bytes]:
    """Return the latest keys or values of a topic's partitions, without nulls."""
    options: ReadOptions = {**how, "columns": (side,), "limit": _SAMPLE}
    with closing(bucket.read(topic, last=_SAMPLE_OF_PARTITION, **options)) as read:
        column: list[bytes | None] = [row[side] for batch in read.batches() for row in batch.to_pylist()]
    return [message for message in column if message is not None]


def open_registry(url: str | None, config: Path | None) -> SchemaRegistry | None:
    """Return the schema registry that a URL or a properties file names. The file may add properties to the URL. Return
    None without either."""
    if url is None and config is None:
        return None
    from tieredstore.config.properties import read_properties
    from tieredstore.schema_registry import SchemaRegistry

    return SchemaRegistry(url, {} if config is None else read_properties(config))


def _read_text(path: Path) -> str:
    try:
        return read_named(path).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None
