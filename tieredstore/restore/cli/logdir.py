"""``restore prepare``, ``logdir`` and ``finish``: a bucket's segments in a cluster's log directories, with the same
offsets.

This module is separate from the other commands of ``restore``, because they need no log directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from tieredstore.cli.app.options import Apply, Cluster, DryRun, FromTo, Json, Store
from tieredstore.cli.app.outcomes import Teller, Words, carry_out, tell_all
from tieredstore.cli.terminal.output import complain, print_lines, quantity
from tieredstore.errors import ConfigError, ObjectArchivedError
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.api.outcomes import Outcome
    from tieredstore.api.rows import Topic

_Plan: TypeAlias = Annotated[
    Path, typer.Option("--plan", metavar="FILE", help="Plan file: prepare writes it; logdir and finish read it.")
]
_PLAN: Final = Path("restore.json")


def prepare(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics to restore, by name or glob.")],
    store: Store,
    cluster: Cluster,
    plan: _Plan = _PLAN,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", min=1, metavar="N", help="Replicas of each partition.")
    ] = 1,
    partition_count: Annotated[
        int | None,
        typer.Option(
            "--partition-count",
            min=1,
            metavar="N",
            help="Number of partitions of each topic, if more than in the bucket.",
        ),
    ] = None,
) -> None:
    """Create empty topics in a running cluster, and write the plan: the topics' ids and brokers.

    Until finish, the topics keep all records: retention, compaction and tiered storage are off. A topic must not exist
    already. Copy the plan (--plan) to each broker's host, and stop the brokers cleanly before you run restore logdir.

    Example: tieredstore restore prepare orders -c store.properties --bootstrap-server broker1:9092
    """
    from tieredstore.restore.logdir.cluster import RestoreCluster
    from tieredstore.restore.logdir.prepared import new_plan

    needed = cluster.require()
    with store.open() as bucket:
        found = bucket.topics(*topics)
        names = [topic.name for topic in found]
        if (again := next((name for name in names if names.count(name) > 1), None)) is not None:
            raise ConfigError(
                f"topic {again} was created more than once: mirror one of its topic ids into a separate bucket"
            )
        wanted = {topic.name: (str(topic.topic_id), _logs_of(bucket, topic, partition_count)) for topic in found}
    with RestoreCluster(needed) as brokers, new_plan(plan) as file:
        prepared = brokers.prepare(
            wanted, replication_factor=replication_factor, on_topic=lambda name: print_lines([f"created {name}"])
        )
        prepared.write(file)
    print_lines([f"{quantity(len(wanted), 'topic')} prepared in {plan}; stop the brokers, then run restore logdir"])


def logdir(
    log_dirs: Annotated[
        list[Path], typer.Argument(metavar="LOG_DIR", help="All log directories (log.dirs) of one stopped broker.")
    ],
    store: Store,
    window: FromTo,
    plan: _Plan = _PLAN,
    producer_state: Annotated[
        Literal["drop", "keep"],
        typer.Option(
            "--producer-state", help="State of idempotent producers; keep it only when restoring into the old cluster."
        ),
    ] = "drop",
    open_transactions: Annotated[
        Literal["fail", "cut", "abort"],
        typer.Option(
            "--open-transactions",
            help="For transactions open at the log's end: fail, cut the log before the first of them, or abort them.",
        ),
    ] = "fail",
    *,
    replicas: Annotated[bool, typer.Option("--replicas", help="Restore every replica, each on its broker.")] = False,
    dry_run: DryRun = False,
    output: Json,
) -> None:
    """Write the prepared partitions that this broker has into its log directories, with the same batches and offsets.

    Stop the broker cleanly first. From the first write until the restore is complete, the broker refuses to start. If
    the restore is stopped or killed, run it again. --from keeps whole segments. --to ends between two batches. Leader
    epochs become 0, as in every new topic.

    Example: tieredstore restore logdir /var/lib/kafka/data -c store.properties
    """
    from tieredstore.api.outcomes import run
    from tieredstore.restore.logdir.prepared import PreparedRestore
    from tieredstore.restore.logdir.restoring import RestoreOptions, restore_logs

    window.check_order()
    options = RestoreOptions(
        start=window.first, stop=window.end, producer_states=producer_state, open_transactions=open_transactions,
        replicas=replicas,
    )  # fmt: skip
    prepared = PreparedRestore.read(plan)
    with store.open() as bucket:
        teller = Teller(_RESTORED, output.as_json, dry_run=dry_run)
        tell_all(
            lambda tell: run(restore_logs(bucket.manager, log_dirs, prepared, options, dry_run=dry_run), tell), teller
        )


def finish(
    store: Store,
    cluster: Cluster,
    plan: _Plan = _PLAN,
    changed_settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the topics; may be given several times."),
    ] = None,
    *,
    apply: Apply,
    output: Json,
) -> None:
    """Give the restored topics their settings back, once the brokers run. The output shows the segments that retention
    will delete.

    Without --set, the topics get the cluster's defaults.

    Example: tieredstore restore finish -c store.properties --bootstrap-server broker1:9092
    """
    from tieredstore.restore.logdir.cluster import RestoreCluster, plan_finish
    from tieredstore.restore.logdir.prepared import PreparedRestore

    settings = dict(_parse_setting(text) for text in changed_settings or ())
    prepared = PreparedRestore.read(plan)
    with RestoreCluster(cluster.require()) as brokers, store.open() as bucket:
        carry_out(
            plan_finish(bucket.manager, brokers, prepared, settings), _FINISHED, yes=apply.yes, as_json=output.as_json
        )


def _logs_of(bucket: Bucket, topic: Topic, asked: int | None) -> list[tuple[int, int]]:
    """Return the start and the end of each partition's log in the bucket. Report segments that cannot be part of the
    log. Raise ObjectArchivedError for an archived manifest, because its segment can be part of the log later."""
    from tieredstore.catalog.planning import load_catalog
    from tieredstore.catalog.problems import ProblemKind

    stored = max(partition.number for partition in topic.partitions) + 1
    if asked is not None and asked < stored:
        raise ConfigError(f"{topic.name} has {stored} partitions in the bucket: --partition-count {stored} or more")
    logs = [(0, 0)] * (asked or stored)
    catalog = load_catalog(bucket.manager, topic=topic.name, topic_id=topic.topic_id)
    for problem in catalog.problems:
        if problem.kind is ProblemKind.ARCHIVED:
            raise ObjectArchivedError(problem.detail)
    for partition in topic.partitions:
        if partition.end_offset is not None:
            # After an unclean election, the log may end before a segment of the leader that lost.
            log = catalog.lineage(topic.name, partition.number, topic.topic_id)
            logs[partition.number] = (log.earliest_offset, log.end_offset)
        if left_out := partition.incomplete:
            complain(
                f"{topic.name}-{partition.number}: {quantity(left_out, 'segment')} incomplete or damaged, left out"
            )
    return logs


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set is {text!r:.60}: give NAME=VALUE, such as retention.ms=604800000")
    return name, value


def _restored_line(outcome: Outcome, verb: str) -> str:
    where = f"{outcome.topic}-{outcome.partition} {outcome.base_offset} … {outcome.last_offset}"
    size = "" if outcome.size is None else f" ({human_bytes(outcome.size)})"
    reason = f": {outcome.reason}" if outcome.reason else ""
    return f"{verb:<10} {where}{size}{reason}"


def _finished_line(outcome: Outcome, verb: str) -> str:
    return f"{verb:<10} {outcome.topic}: {outcome.reason}"


_RESTORED: Final = Words(
    noun="segment",
    done="restored",
    doing="restoring",
    show=_restored_line,
    left={"there": "there already", "left_out": "outside of the window"},
    also={"aborted": "aborted by a marker"},
    none="no segments to restore for this broker",
    only_adds=True,
)
_FINISHED: Final = Words(
    noun="topic", done="released", doing="releasing", show=_finished_line, left={}, none="no topics", has_sizes=False
)
