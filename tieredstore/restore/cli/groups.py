"""``restore groups``: consumer groups continue in the new topics at the same records.

This module is separate from ``offsets``, which needs no cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.cli.app.options import Apply, Cluster, Json, Store, parse_time
from tieredstore.cli.app.outcomes import OUTCOME, Words, carry_out
from tieredstore.cli.terminal.output import quantity
from tieredstore.cli.terminal.rows import Row, attributes
from tieredstore.errors import ConfigError
from tieredstore.restore.cli.snapshot import ClusterId

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.restore.groups import GroupOutcome, SourceGroups
    from tieredstore.restore.produce.offset_map import OffsetMap

_NEWEST: Final = "newest"


def groups(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run of restore produce (see restore offsets).")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP", help="Only these groups, by name or glob.")
    ] = None,
    *,
    store: Store,
    cluster: Cluster,
    from_cluster: Annotated[
        str | None,
        typer.Option(
            "--from-cluster",
            metavar="HOST:PORT|FILE",
            help="Offsets from the old cluster: its address, or a properties file.",
        ),
    ] = None,
    from_snapshot: Annotated[
        str | None,
        typer.Option(
            "--from-snapshot",
            metavar="newest|TIME",
            help="Offsets from the newest snapshot, or the last snapshot up to TIME.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help='Offsets from JSON: {"GROUP": {"TOPIC": {"PARTITION": 12}}}.'),
    ] = None,
    cluster_id: ClusterId = None,
    apply: Apply,
    output: Json,
) -> None:
    """Move consumer groups: commit for each group the new offset of the record that it reads next.

    --bootstrap-server names the cluster that was restored into. Groups with members are refused, in both clusters: stop
    their consumers first.

    An offset without a record becomes the offset of the next record. An offset beyond the restored end becomes the end.
    If keys were hashed again, a group moves to the first record that it may not have read.

    Example: tieredstore restore groups orders -c store.properties --bootstrap-server new:9092 --from-snapshot newest
    """
    from tieredstore.live.cluster_state import ClusterState
    from tieredstore.restore.groups import groups_of_file, plan_groups
    from tieredstore.restore.produce.offset_map import load_map

    if sum(each is not None for each in (from_cluster, from_snapshot, from_file)) != 1:
        raise ConfigError("give one source of the groups' offsets: --from-cluster, --from-snapshot or --from-file")
    target = cluster.client()
    if target is None:
        raise ConfigError("name the cluster that the run restored into: give --bootstrap-server HOST:PORT")
    with store.open() as bucket, ClusterState(target) as brokers:
        opened = bucket.opened()
        offset_map = load_map(opened.store, opened.prefix, run)
        if from_cluster is not None:
            source = _of_cluster(from_cluster, offset_map, names or ())
        elif from_snapshot is not None:
            source = _of_snapshot(bucket, from_snapshot, cluster_id).choose(names or ())
        else:
            assert from_file is not None
            source = groups_of_file(from_file).choose(names or ())
        carry_out(plan_groups(offset_map, source, brokers), _MOVED, yes=apply.yes, as_json=output.as_json)


def _of_cluster(place: str, offset_map: OffsetMap, names: Sequence[str]) -> SourceGroups:
    from tieredstore.config.properties import read_properties
    from tieredstore.live.cluster_state import ClusterState
    from tieredstore.restore.groups import groups_of_cluster

    properties = read_properties(Path(place)) if Path(place).is_file() else {"bootstrap.servers": place}
    with ClusterState(properties) as brokers:
        return groups_of_cluster(brokers, offset_map, names)


def _of_snapshot(bucket: Bucket, moment: str, cluster_id: str | None) -> SourceGroups:
    from tieredstore.ops.snapshots.storing import Snapshots
    from tieredstore.restore.groups import groups_of_snapshot

    at = None if moment == _NEWEST else parse_time("--from-snapshot", moment)
    at_ms = None if at is None else at.timestamp_ms
    return groups_of_snapshot(Snapshots.of(bucket.manager).find(at_ms, cluster_id))


def _line(outcome: GroupOutcome, verb: str) -> str:
    reason = outcome.reason or outcome.error
    more = f" ({reason})" if reason is not None else ""
    if outcome.topic is None:
        return f"{verb}  {outcome.name}{more}"
    if outcome.target_topic is None:
        return f"{verb}  {outcome.name}  {outcome.topic}-{outcome.partition} {outcome.offset}{more}"
    old = outcome.topic if outcome.offset is None else f"{outcome.topic}-{outcome.partition} {outcome.offset}"
    again = "" if outcome.read_again is None else f", at most {quantity(outcome.read_again, 'record')} read again"
    new = f"{outcome.target_topic}-{outcome.target_partition} {outcome.target_offset}"
    # Show the group's current commit in the target. If this commit is beyond the new offset, the move makes the group
    # read records again.
    now = outcome.committed_offset
    instead = "" if now is None or now == outcome.target_offset else f", instead of {now}"
    return f"{verb}  {outcome.name}  {old} → {new}{instead}{again}{more}"


_ROW: Final[Row[GroupOutcome]] = Row(
    OUTCOME.of(lambda one: one),
    attributes(
        "offset", "target_topic", "target_partition", "target_offset", "committed_offset", "where", "difference",
        "read_again",
    ),
)  # fmt: skip
_MOVED: Final = Words(
    noun="offset",
    done="moved",
    doing="moving",
    show=_line,
    left={
        "there": "there already",
        "not_restored": "in partitions that the run did not restore",
        "not_movable": "groups that cannot be moved",
    },
    stopping=frozenset({"not_movable"}),
    has_sizes=False,
    row=_ROW,
)
