"""``tieredstore ls``: topics, partitions and segments in a store, and the brokers' offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from tieredstore.api.rows import Partition, Segment, Topic
from tieredstore.cli.app.options import Cluster, FromTo, Output, Store, Topics, parse_time
from tieredstore.cli.bucket.stored_pictures import draw_offsets, draw_stored
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    human_count,
    human_ratio,
    human_time,
    leader_epoch_rows,
    print_json_line,
    print_table,
    quantity,
    ratio_of,
)
from tieredstore.cli.terminal.plots import Picture, PlotFile
from tieredstore.cli.terminal.rows import Row, attributes, column, time_fields
from tieredstore.cli.terminal.rows import field as declare
from tieredstore.cli.terminal.tables import WIDE, Column, moment, number, text, word
from tieredstore.errors import (
    BrokerUnavailableError,
    ConfigError,
    CorruptDataError,
    EncryptionError,
    ObjectArchivedError,
    ResourceNotFoundError,
    TieredStoreError,
    excerpt,
)
from tieredstore.model import AtTime, OffsetSpan, Uuid, human_bytes
from tieredstore.ops.listing import HeldOffsets
from tieredstore.process.parallel import in_parallel
from tieredstore.process.thread_pool import ThreadPool

if TYPE_CHECKING:
    from tieredstore.config import Settings

_HOLE: Final = "(hole)"
_MOST_SPANS: Final = 3
_NEVER: Final = WIDE + 1
"""The rank of a column that is omitted because it would have the same value in every line."""

_Life: TypeAlias = tuple[str, Uuid, int]
"""A partition of one incarnation of a topic."""

_Listed: TypeAlias = tuple[Segment, OffsetSpan | None]
"""A segment, and the hole before it."""

_FIRST_CHUNKS: Final = 8
"""The number of segments whose first chunk is read at the same time. A chunk has 4 MiB by default, and takes twice its
size in memory.
"""


def ls(
    topics: Topics,
    store: Store,
    cluster: Cluster,
    window: FromTo,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            rich_help_panel="Cluster",
            help=(
                "Check that all records before this time are in the bucket: exit code 0 if they are, 3 if not, 75 if "
                "the brokers cannot tell."
            ),
        ),
    ] = None,
    *,
    first_times: Annotated[
        bool,
        typer.Option(
            "--first-times",
            rich_help_panel="Topics",
            help=(
                "With -p, also show the time of each segment's first record: this reads its first chunk, and needs "
                "the key."
            ),
        ),
    ] = False,
    output: Output,
    plot: PlotFile = None,
) -> None:
    """List topics, partitions and segments: offsets, sizes, ratio, time span.

    Each line is a partition. With -p, each line is a segment, or a hole: offsets that are in no segment. -p all lists
    the segments of all partitions. ls reads the manifest of each segment, and needs no key.

    FIRST ENDS and LAST are the times (UTC) of the newest records of the first and the last segment. Manifests have no
    other times. FIRST RECORD (--first-times) is read from each segment. It is "-" if the record has no time or cannot
    be decrypted.

    Segments that lack an object (after an unfinished copy or deletion, or a loss) are named on stderr. They have
    "complete": false in JSON.

    With --bootstrap-server, each line is a partition with the brokers' offsets. NOT STORED are offsets that only the
    brokers have. LOST are offsets that neither the bucket nor the brokers have. No record before COMPLETE UP TO (UTC)
    is missing. Topics that the brokers tier are listed even if the bucket has none of their segments. An active segment
    is stored only after the broker has closed it. With --from or --to, only offsets in the window count, and COMPLETE
    UP TO is left out.

    --plot draws the stored bytes by the time of their records. With -p or --bootstrap-server, it draws the offsets of
    each partition, lost offsets in red. Drawing needs matplotlib.

    Example: tieredstore ls -c store.properties orders -p 0
    """
    window.check_order()
    picture = None if plot is None else Picture(plot)
    time, is_whole = parse_time("--until", until), not (window.start or window.stop)
    has_broker = cluster.client() is not None
    has_segments = topics.partitions is not None and not has_broker
    if time is not None and not (has_broker and is_whole):
        raise ConfigError("--until compares with brokers: give --bootstrap-server, and leave out --from and --to")
    if first_times and not has_segments:
        raise ConfigError("--first-times is for segments: give -p N or -p all, and no --bootstrap-server")
    seen = _Seen(is_drawn=picture is not None, first_times={} if first_times else None)
    rows: Sequence[Topic] = ()
    with store.open(cluster, is_all=not topics.names) as bucket:
        places, which = {"start": window.first, "stop": window.end}, topics.which()
        if has_segments:
            _show_segments(seen, map(seen.add, bucket.each_segment(*topics.names, **places, **which)), output)
        else:
            try:
                rows = bucket.topics(*topics.names, **places, until=time, on_segment=seen.add, **which)
            except BrokerUnavailableError as error:
                if time is None:
                    raise
                raise BrokerUnavailableError(f"unknown if the bucket is complete {_up_to(time)}: {error}") from error
            _show_partitions(rows, output, has_broker=has_broker, is_whole=is_whole, until=time)
    _name_missing_keys(seen, bucket.settings)
    if picture is not None and (has_segments or has_broker):
        draw_offsets(picture, _lives_of(rows) if has_broker else seen.partitions(), broker=has_broker)
    elif picture is not None:
        draw_stored(picture, seen.whole)
    if seen.damaged:
        raise typer.Exit(CorruptDataError.exit_code)
    if time is not None:
        _judge(rows, time)


def _first_time(segment: Segment) -> datetime | TieredStoreError | None:
    """Return the time of the segment's first record, or the error that prevented reading it."""
    if segment.metadata is None or segment.missing:
        return None
    try:
        return segment.read_first_time()
    except ResourceNotFoundError:  # deleted since the listing
        return None
    except (EncryptionError, ConfigError, CorruptDataError, ObjectArchivedError) as error:
        return error


@dataclass(slots=True)
class _Seen:
    """Results of the listing so far: sums, present offsets and, for a picture, times and sizes of complete segments."""

    is_drawn: bool
    whole: list[tuple[str, int | None, int]] = field(default_factory=list[tuple[str, int | None, int]])
    key_ids: set[str] = field(default_factory=set[str])
    held: dict[_Life, HeldOffsets] = field(default_factory=dict[_Life, HeldOffsets])
    segments: int = 0
    size: int = 0
    stored_size: int = 0
    incomplete: int = 0
    damaged: int = 0
    holes: int = 0
    first_times: dict[Uuid, datetime | None] | None = None
    """The times of the segments' first records, by segment id, or None without ``--first-times``."""
    unknown: list[TieredStoreError] = field(default_factory=list[TieredStoreError])
    """The errors that prevented reading first times, one for each segment without a known first time."""

    def add(self, segment: Segment) -> _Listed:
        """Add a segment, and return it with the hole before it. Report an unreadable segment on stderr."""
        if segment.metadata is None or segment.missing:
            self.incomplete += 1
            self.damaged += segment.damage is not None
            fault = segment.damage or "no " + ", no ".join(f".{suffix}" for suffix in segment.missing)
            complain(f"{segment} cannot be read: {fault}")
            return segment, None
        if self.is_drawn:
            self.whole.append((segment.topic, _time_ms(segment), segment.stored_size))
        self.segments += 1
        if segment.key_id is not None:
            self.key_ids.add(segment.key_id)
        self.size += segment.size or 0
        self.stored_size += segment.stored_size
        life = (segment.topic, segment.topic_id, segment.partition)
        hole = self.held.setdefault(life, HeldOffsets()).add(segment.metadata)
        self.holes += hole is not None
        return segment, hole

    def read_first_times(self, listed: Iterable[_Listed], times: dict[Uuid, datetime | None]) -> Iterator[_Listed]:
        """Read the time of each segment's first record, then yield the segment. Report a damaged segment on stderr."""
        with ThreadPool(_FIRST_CHUNKS, "tieredstore-times") as pool:
            jobs = in_parallel(pool, lambda one: (one, _first_time(one[0])), listed, at_once=2 * _FIRST_CHUNKS)
            for one, time in jobs:
                if isinstance(time, CorruptDataError):
                    self.damaged += 1
                    complain(str(time))
                elif isinstance(time, TieredStoreError):
                    self.unknown.append(time)
                times[one[0].segment_id] = None if isinstance(time, TieredStoreError) else time
                yield one

    def summary(self) -> dict[str, JsonValue]:
        """Return the sums over segments for scripts. Sums of bytes cover complete segments only."""
        return {**_SEEN.json(self), "ratio": ratio_of(self.size, self.stored_size)}

    def partitions(self) -> dict[_Life, Partition]:
        """Return the present offsets of each partition."""
        return {life: _held_partition(life[2], held.spans) for life, held in self.held.items()}


def _name_missing_keys(seen: _Seen, settings: Settings) -> None:
    """Report on stderr why first times are unknown, or which key pairs are missing to read the segments."""
    if seen.unknown:
        complain(f"FIRST RECORD of {quantity(len(seen.unknown), 'segment')} is unknown: {seen.unknown[0]}")
        return
    known = () if settings.encryption is None else settings.encryption.key_pairs
    missing = sorted(seen.key_ids - {pair.id for pair in known})
    if missing:
        names = " and ".join(repr(excerpt(key_id)) for key_id in missing)
        complain(
            f"the segments are encrypted: reading their records needs the private key of {names}, in a settings file "
            f"as encryption.key.pairs.{excerpt(missing[0])}.private.key.file; tieredstore init writes one"
        )


_SEEN: Final[Row[_Seen]] = attributes("segments", "incomplete", "damaged", "holes", "size", "stored_size")


def _lives_of(topics: Sequence[Topic]) -> dict[_Life, Partition]:
    return {(topic.name, topic.topic_id, one.number): one for topic in topics for one in topic.partitions}


def _held_partition(number: int, spans: Sequence[tuple[int, int]]) -> Partition:
    gaps = tuple((last + 1, first) for (_, last), (first, _) in itertools.pairwise(spans))
    return Partition(number, spans[0][0], spans[-1][1] + 1, gaps)


# ---- partitions


def _show_partitions(
    topics: Sequence[Topic], output: Output, *, has_broker: bool, is_whole: bool, until: AtTime | None
) -> None:
    rows = [(topic, one) for topic in topics for one in topic.partitions]
    is_id_needed = len({topic.name for topic in topics}) < len(topics)
    row = _partition_row(
        0 if is_id_needed else WIDE, has_broker=has_broker, is_whole=is_whole, has_until=until is not None
    )
    sums = _sums_of([one for _, one in rows])
    not_stored = {"not_stored": sum(_count(one.not_stored) for _, one in rows)} if has_broker else {}
    row.show(
        rows,
        as_json=output.as_json,
        summary={"partitions": len(rows), **_SUMS.json(sums), **not_stored},
        total=["total", *[""] * (len(row.columns) - len(_SUMS.columns) - 1), *_SUMS.cells(sums)],
        empty="no segments found",
        wide=output.wide,
    )


_Named: TypeAlias = tuple[Topic, Partition]


def _partition_row(id_rank: int, *, has_broker: bool, is_whole: bool, has_until: bool) -> Row[_Named]:
    """Declare the fields of a partition. ``id_rank`` is the rank of the topic's id.

    The column COMPLETE UP TO is shown for whole partitions, not for windows.
    """
    parts: list[Row[_Named]] = [
        Row(
            declare("topic", lambda row: row[0].name, text("TOPIC")),
            declare("topic_id", lambda row: row[0].topic_id, word("TOPIC ID", rank=id_rank)),
            declare("partition", lambda row: row[1].number, number("PART")),
            column(word("OFFSETS", short=_around_holes), lambda row: _show_spans(row[1].stored)),
            declare("earliest_offset", lambda row: row[1].earliest_offset),
            declare("end_offset", lambda row: row[1].end_offset),
            declare("lost", lambda row: [{"start": start, "stop": stop} for start, stop in row[1].lost]),
        ),
        (_SUMS_BESIDE_BROKER if has_broker else _SUMS).of(lambda row: row[1]),
    ]
    if has_broker:
        parts.insert(1, (_BROKER_OFFSETS if is_whole else _BROKER_OFFSETS_IN_WINDOW).of(lambda row: row[1]))
    if has_until:
        parts.insert(2, _UNTIL.of(lambda row: row[1]))
    return Row(*parts)


_UNTIL: Final[Row[Partition]] = Row(
    declare(
        "complete_until",
        lambda one: None if one.missing_until is None else not one.missing_until,
        word("COMPLETE"),
        lambda is_complete: "yes" if is_complete else "no",
    ),
    declare("why_missing", lambda one: list(one.why_missing)),
)


def _sums_row(first_rank: int, last_rank: int, stored_rank: int) -> Row[Partition]:
    return Row(
        declare("segments", lambda one: one.segments, number("SEGMENTS", rank=4), human_count),
        declare("size", lambda one: one.size, number("SIZE", rank=3), human_bytes),
        declare("stored_size", lambda one: one.stored_size, number("STORED", rank=stored_rank), human_bytes),
        declare("ratio", lambda one: ratio_of(one.size, one.stored_size)),
        column(number("RATIO", rank=5), lambda one: human_ratio(one.size, one.stored_size)),
        attributes("incomplete", "damaged"),
        time_fields("oldest_timestamp", lambda one: one.first_time, moment("FIRST ENDS", rank=first_rank)),
        time_fields("newest_timestamp", lambda one: one.last_time, moment("LAST", rank=last_rank)),
    )


_SUMS: Final = _sums_row(first_rank=2, last_rank=1, stored_rank=0)
_SUMS_BESIDE_BROKER: Final = _sums_row(first_rank=5, last_rank=4, stored_rank=3)
"""The columns of sums in a table with the brokers' offsets. A narrow terminal drops the sums first, because the offsets
matter more."""


def _broker_offsets_row(complete_up_to: Column | None) -> Row[Partition]:
    return Row(
        declare(
            "broker_earliest_offset",
            lambda one: one.broker and one.broker.earliest_offset,
            number("BROKER FROM", rank=3),
        ),
        declare("broker_end_offset", lambda one: one.broker and one.broker.end_offset, number("BROKER END", rank=2)),
        declare("not_stored", lambda one: _count(one.not_stored), number("NOT STORED")),
        column(text("LOST"), lambda one: ", ".join(f"{start}-{stop - 1}" for start, stop in one.lost) or "none"),
        time_fields("complete_up_to", lambda one: one.complete_up_to, complete_up_to),
    )


_BROKER_OFFSETS: Final = _broker_offsets_row(moment("COMPLETE UP TO"))
_BROKER_OFFSETS_IN_WINDOW: Final = _broker_offsets_row(None)


def _sums_of(rows: Sequence[Partition]) -> Partition:
    first = [one.first_time for one in rows if one.first_time is not None]
    last = [one.last_time for one in rows if one.last_time is not None]
    return Partition(
        -1, None, None, first_time=min(first, default=None), last_time=max(last, default=None),
        segments=sum(one.segments for one in rows), size=sum(one.size for one in rows),
        stored_size=sum(one.stored_size for one in rows), incomplete=sum(one.incomplete for one in rows),
        damaged=sum(one.damaged for one in rows),
    )  # fmt: skip


def _show_spans(stored: Sequence[OffsetSpan]) -> str:
    """Return the stored ranges, such as ``0 … 99, 150 … 199``. For many ranges, return one range and the number of
    holes."""
    if len(stored) > _MOST_SPANS:
        return f"{stored[0][0]} … {stored[-1][1] - 1}, {len(stored) - 1} holes"
    return ", ".join(f"{start} … {stop - 1}" for start, stop in stored)


def _around_holes(held: str) -> str:
    """Shorten a text such as ``0 … 199, 1 hole`` to its range."""
    first, *others = held.split(", ")
    if not others or "…" not in others[-1]:
        return held
    return f"{first.partition(' ')[0]} … {others[-1].rpartition(' ')[2]}, {len(others)} hole{'s' * (len(others) > 1)}"


def _count(spans: Iterable[OffsetSpan]) -> int:
    return sum(stop - start for start, stop in spans)


def _judge(topics: Sequence[Topic], until: AtTime) -> None:
    """Report which partitions are incomplete up to a time, and why. Raise an error if there are any."""
    unknown = incomplete = 0
    for topic in topics:
        for one in topic.partitions:
            where, missing = f"{topic.name}-{one.number}", one.missing_until
            if missing is None:
                unknown += 1
                complain(f"{where} is not known to be complete: the brokers do not have it")
            elif missing:
                incomplete += 1
                for sentence in one.why_missing:
                    complain(f"{where} is not complete: {sentence}")
    if incomplete:
        raise ResourceNotFoundError(f"not complete {_up_to(until)}: {quantity(incomplete, 'partition')}")
    if unknown:
        raise BrokerUnavailableError(f"not known to be complete {_up_to(until)}: {quantity(unknown, 'partition')}")


def _up_to(time: AtTime) -> str:
    return f"up to {human_time(time.timestamp_ms)} (UTC)"


# ---- segments


def _show_segments(seen: _Seen, listed: Iterable[_Listed], output: Output) -> None:
    times = seen.first_times
    if times is not None:
        listed = seen.read_first_times(listed, times)
    row = _segment_row(times)
    if output.as_json:
        for segment, _ in listed:
            print_json_line(row.json(segment))
        print_json_line({"summary": seen.summary()})
        return
    blank = [""] * (4 if times is None else 5)
    rows: list[list[str]] = []
    starts: list[tuple[_Life, int]] = []
    for segment, hole in listed:
        if segment.metadata is None or segment.missing:
            continue
        if hole is not None:
            rows.append(
                [segment.topic, str(segment.partition), *map(str, hole), *blank, _HOLE, str(segment.topic_id), ""]
            )
        rows.append(row.cells(segment))
        starts.append(((segment.topic, segment.topic_id, segment.partition), segment.base_offset))
    if not rows:
        complain("no segments found")
        return
    lives = seen.held
    row = _segment_row(
        times,
        has_topic=len({topic for topic, *_ in lives}) > 1,
        has_partition=len({number for *_, number in lives}) > 1,
        has_topic_id=len({(topic, number) for topic, _, number in lives}) < len(lives),
        has_segment_id=len(set(starts)) < len(starts),
    )
    stored = seen.stored_size
    rows.append(
        ["total", "", "", "", human_bytes(seen.size), human_bytes(stored), human_ratio(seen.size, stored), *blank]
    )
    # Write "total" into the first column that is shown. A column with the same value in every line is omitted.
    at = [place for place, each in enumerate(row.columns) if each.rank != _NEVER]
    cells = [[line[place] for place in at] for line in rows]
    cells[-1][0] = "total"
    print_table([row.columns[place] for place in at], cells, total=True, wide=output.wide)


def _segment_row(
    first_times: Mapping[Uuid, datetime | None] | None,
    *,
    has_topic: bool = True,
    has_partition: bool = True,
    has_topic_id: bool = False,
    has_segment_id: bool = False,
) -> Row[Segment]:
    """Declare the fields of a segment. A table lists only complete segments. The table has columns of names and ids
    only if their values differ between rows. If the user asked for first times, a narrow terminal drops SIZE and FORM
    before it shortens these times to days.
    """
    return Row(
        declare("topic", lambda one: one.topic, text("TOPIC", rank=0 if has_topic else _NEVER)),
        declare("topic_id", lambda one: one.topic_id),
        declare("partition", lambda one: one.partition, number("PART", rank=0 if has_partition else _NEVER)),
        declare("base_offset", lambda one: one.base_offset, number("OFFSET")),
        declare("last_offset", lambda one: one.last_offset, number("LAST OFFSET")),
        attributes("segment_id"),
        declare("size", lambda one: one.size, number("SIZE", rank=2 if first_times is None else 5), human_bytes),
        declare("stored_size", lambda one: one.stored_size, number("STORED", rank=1), human_bytes),
        declare("ratio", _ratio, number("RATIO", rank=4), "{:.2f}".format),
        declare("compressed", lambda one: one.compressed),
        declare("encrypted", lambda one: None if one.compressed is None else one.key_id is not None),
        declare("key_id", lambda one: one.key_id),
        column(text("FORM", rank=3 if first_times is None else 6), _form),
        *([] if first_times is None else [_first_record_row(first_times)]),
        time_fields("max_timestamp", _time_ms, moment("LAST RECORD")),
        declare("leader_epochs", lambda one: None if one.last_offset is None else leader_epoch_rows(one.leader_epochs)),
        declare("complete", lambda one: one.metadata is not None and not one.missing),
        declare("missing", lambda one: list(one.missing)),
        declare("damage", lambda one: one.damage),
        column(word("TOPIC ID", rank=0 if has_topic_id else WIDE), lambda one: str(one.topic_id)),
        column(word("SEGMENT ID", rank=0 if has_segment_id else WIDE), lambda one: str(one.segment_id)),
    )


def _first_record_row(times: Mapping[Uuid, datetime | None]) -> Row[Segment]:
    return time_fields("first_timestamp", lambda one: times[one.segment_id], moment("FIRST RECORD"))


def _time_ms(segment: Segment) -> int | None:
    """Return the greatest timestamp of the segment's batches, if known."""
    known = None if segment.metadata is None else segment.metadata.max_timestamp_ms
    return None if known is None or known < 0 else known


def _ratio(segment: Segment) -> float | None:
    return None if segment.size is None else ratio_of(segment.size, segment.stored_size)


def _form(segment: Segment) -> str:
    """Return how the segment is stored, such as ``zstd key1`` or ``plain``."""
    forms = ["zstd"] if segment.compressed else []
    return " ".join([*forms, *([] if segment.key_id is None else [excerpt(segment.key_id)])]) or "plain"
