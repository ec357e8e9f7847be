"""``tieredstore cat``: show the records of a topic, or write them into files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tieredstore.cli.app.options import (
    Cluster,
    Follow,
    FromTo,
    GroupName,
    Last,
    OneTopic,
    Records,
    Rows,
    Store,
    Values,
    Work,
)
from tieredstore.cli.app.table import find_option
from tieredstore.cli.records.record_output import (
    IN_TABLE,
    RecordFormat,
    parse_format,
    tell_left_out,
    write_formatted,
    write_table,
)
from tieredstore.cli.records.row_output import GivenRows, Target
from tieredstore.cli.records.value_types import TopicTypes, sample_of
from tieredstore.cli.terminal.output import complain, print_lines, quantity
from tieredstore.errors import ConfigError, excerpt
from tieredstore.model import Last as LastRecords
from tieredstore.model import hint_of_number, human_bytes
from tieredstore.process.interruption import Interrupted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from tieredstore.api.bucket import Bucket
    from tieredstore.api.reading import QueryOptions, ReadOptions
    from tieredstore.query.arguments import Partitions
    from tieredstore.query.export import Exported
    from tieredstore.query.topic_columns import ColumnTypes
    from tieredstore.query.writers import BatchRows

_WIDTH: Final = 8
"""The width of offsets in the table when a group's records are shown."""

_OF_COLUMNS: Final = "parquet", "arrow"
"""Formats with a column for each field. ``--value json`` infers a schema for these formats only, because the others can
contain any JSON.
"""


def cat(
    topic: OneTopic,
    store: Store,
    cluster: Cluster,
    window: FromTo,
    last: Last = None,
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep",
            metavar="PATTERN",
            rich_help_panel="Records",
            help="Only records with a match of this pattern in key or value.",
        ),
    ] = None,
    follow: Follow = False,
    group: GroupName = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAMES",
            rich_help_panel="Output",
            help="Columns of a file, or of --json or --format output, such as offset,key,value.",
        ),
    ] = None,
    *,
    records: Records,
    values: Values,
    output: Rows,
    work: Work,
) -> None:
    r"""Show the records of a topic, by partition and offset, or write them into files.

    With --bootstrap-server, cat reads the bucket up to its last offset, then the broker from the next offset on.
    Warnings, also about records that were left out, go to stderr.

    -o FILE appears only when it is complete. -o DIR gets files for each partition, named after their offsets; the next
    run continues after the existing files. --format may also be a line with kcat's letters, such as '%t [%p] at offset
    %o: key %k: %s\n'; %T %h %S %K %R are known too.

    Example: tieredstore cat -c store.properties orders --last 5

    Example: tieredstore cat -c store.properties orders --from yesterday --to 10:00 --grep error -n 10

    Example: tieredstore cat -c store.properties orders -o orders-files
    """
    sink = _Sink.parse(topic.topic, output, columns)
    if last is not None and window.start is not None:
        raise ConfigError("--last and --from exclude each other: give one of them")
    window.check_order()
    if follow and (window.stop is not None or sink.target.path is not None):
        raise ConfigError(f"--follow has no end: leave {'-o' if window.stop is None else '--to'} out, or --follow")
    if sink.target.is_folder and (grep is not None or output.count is not None):
        raise ConfigError(
            f"{sink.target.path} is a folder, and its files must be complete: leave "
            f"{'-n' if grep is None else '--grep'} out, or name a file"
        )
    types = TopicTypes(values, "bytes", alone=topic.topic)
    how, which = cast("ReadOptions", read_options(records)), topic.which()
    partitions, how["topic_id"] = which.get("partitions"), which.get("topic_id")
    of_sample = how.copy()
    how["columns"], how["types"] = sink.columns, types
    if work.parallel is not None:
        how["parallel"] = work.parallel
    if output.count is not None:
        how["limit"] = output.count
    if group is not None:
        _refuse_with_group(
            {"-p": topic.partitions, "--topic-id": topic.topic_id, "--to": window.stop, "--grep": grep,
             "-o FILE": sink.target.path, "--columns": columns, "--parallel": work.parallel}
        )  # fmt: skip
        start = window.first if last is None else LastRecords(last)
        client = cluster.require("no broker is named, which --group needs")
        by_group, settings = _group_reader(), store.read_settings()
        with closing(by_group(settings, client, topic.topic, group, start, how, follows=follow)) as rows:
            sink.write(rows, _WIDTH)
        types.tell_nulls()
        return
    if grep is not None:
        how["filter"] = regex_filter(grep, types(topic.topic))
    with store.open(cluster) as bucket:
        if sink.target.is_folder and sink.target.path is not None:
            del how["columns"]
            _write_folder(bucket, topic, window, last, sink.target, partitions, how)
            types.tell_nulls()
            return
        sample = sample_of(bucket, of_sample) if sink.has_columns and grep is None else None
        how["types"], how["follow"] = partial(types, sample=sample), follow
        read = bucket.read(topic.topic, partitions, start=window.first, stop=window.end, last=last, **how)
        with closing(read):
            _tell_numbers(window)
            try:
                sink.write(GivenRows(read.schema, read.batches()), len(str(max(read.end_offset - 1, 0))))
            except (Interrupted, KeyboardInterrupt):
                tell_left_out(read.left_out(asks=False))
                raise
            tell_left_out(read.left_out())
            types.tell_nulls()


def read_options(records: Records, *, by_id: str = "--topic-id") -> QueryOptions:
    """Return the options of a read, without the types of keys and values. Errors name the command's options.

    ``by_id`` is the command's option that chooses a topic id.
    """
    from tieredstore.reading.query import QueryWords

    words = QueryWords(
        accept_loss="use --on-loss report", topic_ids=by_id, choose_topic_id=by_id, schema="--value json"
    )
    return {"isolation": records.isolation, "on_loss": records.on_loss, "words": words}


def regex_filter(pattern: str, types: ColumnTypes) -> ds.Expression:
    """Return the filter of records whose key or value contains a match of an RE2 expression.

    Raises ConfigError for an invalid expression, and for keys and values with fields. The expression is matched against
    the raw bytes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([b""], pa.binary()), pattern)
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise ConfigError(f"--grep {excerpt(pattern)!r} is not a regular expression: {error}") from error
    key, value = (pc.match_substring_regex(_text_of(name, types), pattern) for name in ("key", "value"))
    return key | value


def _text_of(column: str, types: ColumnTypes) -> ds.Expression:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from tieredstore.values.json_text import is_json

    kind = types.key.arrow_type if column == "key" else types.value.arrow_type
    if kind.num_fields:
        raise ConfigError(f"--grep matches only bytes and text, but --{column} has fields: leave one of them out")
    field = ds.field(column)
    return field.cast(pa.string()) if is_json(kind) else field


@dataclass(frozen=True, slots=True)
class _Sink:
    """The destination of a topic's records, and their form: lines in kcat's syntax, or the target's file format."""

    topic: str
    target: Target
    lines: RecordFormat | None
    chosen: tuple[str, ...] | None = None
    """The columns of ``--columns``."""

    @classmethod
    def parse(cls, topic: str, output: Rows, columns: str | None) -> _Sink:
        """Make the sink of these options. Raise ConfigError for options that exclude each other."""
        text = output.row_format
        if text is None or "%" not in text or output.as_json:
            target = Target.parse(output, takes_folder=True)
            if columns is not None and (target.ending is None or target.is_folder):
                raise ConfigError(
                    "--columns is for one file, --json or --format: give one of them, or leave --columns out"
                )
            chosen = None if columns is None else tuple(name.strip() for name in columns.split(","))
            return cls(topic, target, None, chosen)
        if columns is not None:
            raise ConfigError("--format has its own columns: leave --columns out")
        path = None if output.output is None or str(output.output) == "-" else output.output
        return cls(topic, Target(path, None), parse_format(text))

    @property
    def has_columns(self) -> bool:
        """Return True if the fields of values become columns."""
        return self.target.ending in _OF_COLUMNS

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read. Without ``--columns``, these include partition and offset, because progress is computed
        from partition and offset.
        """
        if self.chosen is not None:
            return self.chosen
        if self.lines is None and self.target.ending is not None:
            from tieredstore.query.topic_columns import TOPIC_COLUMNS

            return TOPIC_COLUMNS
        shown = IN_TABLE if self.lines is None else self.lines.columns
        return tuple(dict.fromkeys(("partition", "offset", *shown)))

    def write(self, rows: BatchRows, width: int) -> None:
        """Write the records. ``width`` is the width of offsets in a table."""
        if self.lines is not None:
            with self.target.open() as file:
                write_formatted(_by_partition(rows), self.lines, file, topic=self.topic)
        elif self.target.ending is None:
            write_table(_by_partition(rows), offset_width=width)
        else:
            self.target.write(rows, noun="record")


def _by_partition(rows: BatchRows) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches, each with its partition."""
    for batch in rows:
        yield batch.column("partition")[0].as_py(), batch


def _write_folder(
    bucket: Bucket,
    topic: OneTopic,
    window: FromTo,
    last: int | None,
    target: Target,
    partitions: Partitions,
    how: ReadOptions,
) -> None:
    folder, written, records = cast("Path", target.path), 0, 0

    def tell(exported: Exported, number: int, files: int) -> None:
        nonlocal written, records
        written, records = written + 1, records + exported.records
        shown = f"{quantity(exported.records, 'record')}  {human_bytes(exported.size)}"
        print_lines([f"{exported.file.path.name}  {shown}  ({number} of {files})"])

    bucket.export(
        topic.topic, folder, partitions, start=window.first, stop=window.end, last=last,
        file_format=target.ending or "", on_file=tell, **how
    )  # fmt: skip
    lost = "" if how.get("on_loss") == "fail" else " that are not lost"
    complain(
        f"{quantity(records, 'record')} in {quantity(written, 'new file')}"
        if written
        else f"{folder} has all records{lost}"
    )


def _tell_numbers(window: FromTo) -> None:
    """Warn on stderr if a number that is read as an offset looks like a time."""
    for option, place in (("--from", window.first), ("--to", window.end)):
        if isinstance(place, int) and (hint := hint_of_number(place)) is not None:
            complain(f"{option} {place} is read as an offset; {hint}")


def _refuse_with_group(given: Mapping[str, object]) -> None:
    surplus = next((option for option, value in given.items() if value is not None), None)
    if surplus is not None:
        raise ConfigError(
            f"--group reads the topic with the group's members, and commits written offsets: leave {surplus} out"
        )


def _group_reader() -> Any:
    """Return the implementation of ``cat --group``: the class ``ConsumedTopic`` of the optional part ``consumer``."""
    entry = find_option("cat --group")
    if entry is None:
        raise ConfigError("--group needs the consumer, which is not installed here")
    return entry.load()
