"""``restore produce``: write the records of a bucket or a backup into topics of a running cluster.

This module is separate from the other commands of ``restore``, because this command has many options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tieredstore.cli.app.options import BACKUP, Cluster, DryRun, End, Json, OnLoss, Store
from tieredstore.cli.app.outcomes import Teller, Words, tell_all
from tieredstore.cli.terminal.output import JsonValue, complain, human_count, print_json_line, print_lines, quantity
from tieredstore.cli.terminal.rows import Row, attributes
from tieredstore.errors import ConfigError, ResourceNotFoundError, TopicNotFoundError
from tieredstore.installation import attached_parts
from tieredstore.model import AtTime, Uuid, human_bytes
from tieredstore.ops.doctor.checkup import Check, Verdict

if TYPE_CHECKING:
    from tieredstore.api.outcomes import Outcome
    from tieredstore.cli.records.formats import Format
    from tieredstore.model import OffsetSpan, TopicPartition
    from tieredstore.reading.topic_backup import TopicBackup
    from tieredstore.remote.manager import RemoteStorageManager
    from tieredstore.restore.produce.producing import ProduceRun
    from tieredstore.restore.produce.source import BucketTopics, SourceTopics
    from tieredstore.restore.produce.target import NewTopic, NewTopics
    from tieredstore.restore.produce.time_cut import TimeCut

_LINE_EVERY_S: Final = 10.0
_SNAPSHOT: Final = "snapshot"
_CHECK: Final[Row[Check]] = Row(attributes("check", "outcome", "detail"))


def produce(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="Topics to restore; TOPIC=NEW restores a topic under another name."),
    ],
    store: Store,
    cluster: Cluster,
    window: End,
    name: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Name of the run; by default made of the topics' names.")
    ] = None,
    topic_id: Annotated[
        list[str] | None,
        typer.Option("--topic-id", metavar="ID", help="Topic id, if the topic was deleted and re-created."),
    ] = None,
    partitioner: Annotated[
        Literal["keep", "java", "librdkafka"],
        typer.Option("--partitioner", help="Keep partition numbers, or hash keys as these clients do."),
    ] = "keep",
    cut_file: Annotated[
        Path | None,
        typer.Option(
            "--cut-file", metavar="FILE", help="Read the end offsets from FILE; --to writes FILE if there is none."
        ),
    ] = None,
    on_loss: OnLoss = "fail",
    create_with: Annotated[
        str | None,
        typer.Option(
            "--create-with",
            metavar="FILE|snapshot",
            help="Settings for missing topics: from FILE, or from the snapshots.",
        ),
    ] = None,
    backup: Annotated[Path | None, BACKUP] = None,
    *,
    dry_run: DryRun = False,
    output: Json,
) -> None:
    """Produce the bucket's committed records into topics of a running cluster, each exactly once.

    The target topics must be empty, and nothing else may write to them. --dry-run shows what the cluster would refuse
    or delete. If the run is stopped or killed, run it again: it continues after the last commit.

    Keys, values, headers, times and the order in each partition stay the same. The bucket keeps the new offsets: see
    restore offsets. --to TIME ends all topics at the same time. For several topics, give --topic-id TOPIC=ID for each.

    With --backup, the records come from the files of a pipeline, or from a store's topics of batches (see pubsub). The
    output first shows what such a backup lacks, also with --dry-run.

    Example: tieredstore restore produce orders=orders2 -c store.properties --bootstrap-server broker1:9092
    """
    from tieredstore.api.outcomes import run
    from tieredstore.restore.produce.dry_run import prepare_target
    from tieredstore.restore.produce.producing import ProduceRun
    from tieredstore.restore.produce.runs import ProduceOptions
    from tieredstore.restore.produce.source import BackupTopics, BucketTopics

    client = cluster.require()
    renamed = parse_topics(topics)
    options = ProduceOptions(
        topics=renamed,
        topic_ids=_ids(renamed, topic_id or ()),
        name=name,
        partitioner=partitioner,
        on_data_loss=on_loss,
    )
    if not isinstance(moment := window.end, AtTime | None):
        raise ConfigError(f"--to {window.stop} is not a time: give a time such as 2026-01-31T08:00Z, yesterday or @MS")
    if backup is not None and (moment, cut_file, topic_id or None) != (None, None, None):
        raise ConfigError("--to, --cut-file and --topic-id are for topics of the bucket: leave out --backup")
    with ExitStack() as stack:
        bucket = stack.enter_context(store.open())
        kept = None if backup is None else stack.enter_context(open_backup(backup, list(renamed)))
        source: SourceTopics
        if kept is not None:
            source = BackupTopics(bucket.manager, options, kept)
        else:
            try:
                source = stack.enter_context(BucketTopics(bucket.manager, options))
            except TopicNotFoundError as error:
                raise TopicNotFoundError(f"{error}; for files of a pipeline, or batches, give --backup") from None
            source.end_at(_cut(source, moment, cut_file))
        new = _new_topics(bucket.manager, create_with)
        if dry_run:
            _show_dry_run(source, client, new, as_json=output.as_json)
            return
        for sentence in source.lacks:
            complain(f"source: {sentence}")
        if created := prepare_target(source, client, new):
            complain(f"created {', '.join(created)}")
        teller = Teller(_RESTORED, output.as_json, dry_run=False)
        produced = ProduceRun(source, client, on_progress=_make_counter(teller))
        tell_all(lambda tell: run(_count(produced, kept, teller), tell), teller)


def open_backup(settings: Path, topics: Sequence[str]) -> AbstractContextManager[TopicBackup]:
    """Open the topics of a backup that a settings file describes. Raise ConfigError if no installed part of tieredstore
    knows these settings."""
    formats: list[Format] = [each for part in attached_parts("tieredstore.files") for each in part]
    opened = (each.topics(settings, topics) for each in formats if each.topics is not None)
    found = next((each for each in opened if each is not None), None)
    if found is None:
        raise ConfigError(f"no installed part of tieredstore can restore from {settings}")
    return found


def _count(produced: ProduceRun, backup: TopicBackup | None, teller: Teller) -> Iterator[Outcome]:
    """Yield the outcomes of a run. At the end, report lost offsets, and how many repeated records of a backup were left
    out."""
    yield from produced.outcomes()
    teller.more["lost"] = _list_losses(produced.losses)
    if backup is not None:
        teller.more["repeats"] = backup.repeats
        if backup.repeats:
            complain(f"{quantity(backup.repeats, 'record')} of the backup came twice, and are restored once")


def _list_losses(losses: Sequence[tuple[TopicPartition, OffsetSpan]]) -> list[JsonValue]:
    return [
        {"topic": topic, "partition": number, "start": start, "stop": stop} for (topic, number), (start, stop) in losses
    ]


def _make_counter(teller: Teller) -> Callable[[int], None]:
    """Return a callback that counts records, and shows their number every ten seconds."""
    told_at, total = monotonic(), 0
    teller.more["records"] = 0

    def tell(records: int) -> None:
        nonlocal told_at, total
        total += records
        teller.more["records"] = total
        if (now := monotonic()) - told_at >= _LINE_EVERY_S:
            told_at = now
            complain(f"restoring: {human_count(total)} records so far")

    return tell


def parse_topics(texts: Sequence[str]) -> dict[str, str]:
    """Parse texts TOPIC or TOPIC=NEW to source topics with their targets. Raise ConfigError for other texts."""
    topics: dict[str, str] = {}
    for text in texts:
        name, equals, new = text.partition("=")
        if not name or (equals and not new):
            raise ConfigError(f"{text!r:.60} is not a topic: give TOPIC, or TOPIC=NEW")
        if name in topics:
            raise ConfigError(f"topic {name} is named twice: restore it into each target by a separate run (--run)")
        topics[name] = new or name
    return topics


def _ids(topics: Mapping[str, str], topic_ids: Sequence[str]) -> Mapping[str, Uuid]:
    """Parse texts ID or TOPIC=ID. Raise ConfigError for other texts, and for topics that are not restored."""
    ids: dict[str, Uuid] = {}
    for text in topic_ids:
        name, equals, topic_id = text.rpartition("=")
        if not equals and len(topics) > 1:
            raise ConfigError("--topic-id applies to one topic: give --topic-id TOPIC=ID for each topic")
        name = name if equals else next(iter(topics))
        if name not in topics or name in ids:
            raise ConfigError(
                f"--topic-id names {name!r:.60}, which is {'named twice' if name in ids else 'not restored'}"
            )
        ids[name] = Uuid.parse(topic_id)
    return ids


def _cut(source: BucketTopics, moment: AtTime | None, file: Path | None) -> TimeCut | None:
    """Read the cut (where a restore to a time stops) from ``file``. If there is no such file yet, find the cut for
    ``moment``, and write it to ``file``: a repeated command, and other runs, then end at the same offsets.

    With ``moment``, never read a pipe or a device."""
    from tieredstore.restore.produce.time_cut import TimeCut

    cut = TimeCut.read(file) if file is not None and (moment is None or file.is_file()) else None
    if moment is None:
        return cut
    if cut is None:
        cut = source.find_cut(moment.timestamp_ms)
        if file is not None:
            cut.write(file)
    elif cut.time_ms != moment.timestamp_ms:
        raise ConfigError(f"{file} has the end offsets of another time: leave out --to, or name another --cut-file")
    topics = source.topic_ids
    for each in cut.partitions:
        if each.topic not in topics:
            continue  # the file was written for more topics
        notes = [
            f"{count} {words}"
            for count, words in (
                (each.earlier_records, "later records have earlier times"),
                (each.open_transactions, "transactions are open at this offset"),
                (each.older_transactions, "of these transactions may be cut in other partitions too"),
                (each.split_transactions, "transactions end later in other partitions, and are left out"),
            )
            if count
        ]
        end = f"the restore of {each.topic}-{each.partition} ends before {each.stop}"
        complain(f"{end}{': ' if notes else ''}{'; '.join(notes)}")
    return cut


def _show_dry_run(topics: SourceTopics, client: Mapping[str, str], new: NewTopics | None, *, as_json: bool) -> None:
    """Read all records, check the target, and print a line for each check. Exit with code 2 if a check is bad."""
    from tieredstore.restore.produce.dry_run import BYTES_PER_S, RECORDS_PER_S, examine

    found = examine(topics, client, new=new, scan=True)
    for check in found.checks:
        if as_json:
            print_json_line(_CHECK.json(check))
        else:
            print_lines([f"{check.outcome:<7} {check.check:<12} {check.detail}"])
    if as_json:
        figures = {"records": found.records, "size": found.size, "expected_s": round(found.expected_s, 1)}
        print_json_line({"summary": {**figures, "lost": _list_losses(found.losses)}})
    else:
        restored = f"{quantity(found.records, 'record')} ({human_bytes(found.size)}) would be restored"
        speed = f"{human_count(RECORDS_PER_S)} records or {human_bytes(BYTES_PER_S)} a second"
        print_lines([f"{restored}, in about {_duration(found.expected_s)} at {speed}"])
    if any(check.outcome is Verdict.BAD for check in found.checks):
        raise typer.Exit(ConfigError.exit_code)


def _new_topics(manager: RemoteStorageManager, create_with: str | None) -> NewTopics | None:
    """Return a function that returns the settings of a missing topic, from the file in ``--create-with`` or from the
    bucket's snapshots.

    Raise ConfigError if the file is invalid.
    """
    from tieredstore.ops.snapshots.storing import Snapshots
    from tieredstore.restore.produce.target import NewTopic

    if create_with is None:
        return None
    if create_with != _SNAPSHOT:
        given = NewTopic.read(Path(create_with))
        return lambda _topic, _topic_id: given
    snapshots = Snapshots.of(manager)

    def of_snapshot(topic: str, topic_id: str) -> NewTopic:
        held = snapshots.find_topic(topic, topic_id)
        if held is None:
            raise ResourceNotFoundError(f"no snapshot in the bucket has the topic {topic}: give --create-with FILE")
        return NewTopic(held.settings, held.partition_count, held.replication_factor)

    return of_snapshot


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _restored_line(outcome: Outcome, verb: str) -> str:
    offsets = "no offsets" if outcome.base_offset is None else f"{outcome.base_offset} … {outcome.last_offset}"
    return f"{verb:<10} {outcome.topic}-{outcome.partition} {offsets}, as {outcome.name}"


_RESTORED: Final = Words(
    noun="partition", done="restored", doing="restoring", show=_restored_line, left={"there": "there already"},
    none="no partitions to restore", only_adds=True, has_sizes=False,
    again="run it again to continue after the last commit",
)  # fmt: skip
