"""``restore snapshot`` saves the state of a cluster that its segments do not have. ``restore schemas`` restores
schemas.

This module is separate from the other commands of ``restore``, because it restores no records.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeAlias

import typer

from tieredstore.cli.app.groups import Group
from tieredstore.cli.app.options import (
    Apply,
    Cluster,
    DryRun,
    Json,
    RegistryConfig,
    RegistryUrl,
    Store,
    parse_time,
)
from tieredstore.cli.app.outcomes import Words, carry_out
from tieredstore.cli.terminal.output import human_time, print_json_line, print_lines, quantity
from tieredstore.cli.terminal.rows import Row, field
from tieredstore.cli.terminal.tables import number, text
from tieredstore.errors import ConfigError
from tieredstore.model import human_bytes
from tieredstore.ops.snapshots.storing import Snapshots, StoredSnapshot

if TYPE_CHECKING:
    from tieredstore.format.cluster_snapshot import ClusterSnapshot
    from tieredstore.schema_registry import SchemaRegistry

_At: TypeAlias = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="The last snapshot at or before this time; by default the newest."),
]
ClusterId: TypeAlias = Annotated[
    str | None,
    typer.Option("--cluster-id", metavar="ID", help="Cluster of the snapshot, if there are several."),
]


@dataclass(frozen=True, slots=True)
class Registry(Group):
    """The schema registry."""

    PANEL: ClassVar[str] = "Schema registry"
    registry: RegistryUrl = None
    registry_config: RegistryConfig = None

    @contextlib.contextmanager
    def open(self) -> Generator[SchemaRegistry | None]:
        """Open the registry, and close it at the end of the block. Yield None if no registry is named."""
        from tieredstore.cli.records.value_types import open_registry

        registry = open_registry(self.registry, self.registry_config)
        with contextlib.nullcontext() if registry is None else registry:
            yield registry


def snapshot(
    store: Store,
    cluster: Cluster,
    registry: Registry,
    at: _At = None,
    cluster_id: ClusterId = None,
    *,
    list_all: Annotated[bool, typer.Option("--list", help="List the snapshots in the bucket instead.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Show a snapshot in the bucket instead.")] = False,
    dry_run: DryRun = False,
    output: Json,
) -> None:
    """Write a snapshot of a running cluster into the bucket: the state that its segments do not have.

    A snapshot has the topics' own settings and partition counts, ACLs, the committed offsets of consumer groups, and
    the schemas of a registry. The output names the parts that could not be read. The uploader writes a snapshot each
    hour.

    Example: tieredstore restore snapshot -c store.properties --bootstrap-server broker1:9092
    """
    at_ms = _parse_at(at)
    if list_all and show:
        raise ConfigError("give either --list or --show")
    if not show and (at or cluster_id):
        raise ConfigError("--at and --cluster-id choose a snapshot in the bucket: give them with --show")
    if list_all or show:
        with store.open() as bucket:
            snapshots = Snapshots.of(bucket.manager)
            if list_all:
                found = snapshots.find_all()
                summary = {"snapshots": len(found)}
                _STORED.show(found, as_json=output.as_json, empty="no snapshots found", summary=summary)
            else:
                _show(snapshots.find(at_ms, cluster_id), output)
        return
    from tieredstore.live.cluster_state import ClusterState
    from tieredstore.ops.snapshots.taking import take_snapshot

    client = cluster.require()
    with store.open() as bucket, ClusterState(client) as state, registry.open() as schemas:
        snapshots = Snapshots.of(bucket.manager)
        taken = take_snapshot(snapshots.store, state, schemas)
        _show(taken, output)
        if not dry_run and not snapshots.write(taken, is_hourly=False):
            raise ConfigError("another snapshot was written in this second: run the command again")
    if not output.as_json:
        print_lines(["would be written" if dry_run else "written"])


def schemas(
    store: Store,
    registry: Registry,
    at: _At = None,
    cluster_id: ClusterId = None,
    *,
    apply: Apply,
    output: Json,
) -> None:
    """Register a snapshot's schemas in a registry, with the same subjects, versions and ids, in the mode IMPORT.

    Values in Kafka contain the ids of their schemas. The command fails if the registry has another schema under one of
    the ids. Run the command before clients use the cluster. The command registers only missing schemas, so you may
    repeat it.

    Example: tieredstore restore schemas -c store.properties --registry http://registry:8081
    """
    from tieredstore.restore.schemas import plan_schemas

    with registry.open() as opened, store.open() as bucket:
        if opened is None:
            raise ConfigError("no schema registry is named: give --registry URL")
        found = Snapshots.of(bucket.manager).find(_parse_at(at), cluster_id, has_schemas=True)
        if found.schemas is not None:
            plan = plan_schemas(opened, found.schemas)
            if not output.as_json:
                print_lines([f"schemas of the snapshot of {human_time(found.taken_ms)}"])
            carry_out(plan, _REGISTERED, yes=apply.yes, as_json=output.as_json)


def _parse_at(text: str | None) -> int | None:
    at = parse_time("--at", text)
    return None if at is None else at.timestamp_ms


def _show(snapshot: ClusterSnapshot, output: Json) -> None:
    if output.as_json:
        print_json_line({"snapshot": json.loads(snapshot.to_json())})
    else:
        print_lines(_lines_of(snapshot))


def _lines_of(snapshot: ClusterSnapshot) -> Iterator[str]:
    """Yield a line for each topic, each group and each resource that the snapshot lacks, and the numbers of ACLs and
    schemas."""
    yield f"cluster {snapshot.cluster_id} at {human_time(snapshot.taken_ms)}"
    for topic in snapshot.topics:
        own = ", ".join([f"{name}={value}" for name, value in topic.settings.items()])
        withheld = "".join(f", {name} (secret: not held)" for name in topic.withheld)
        count = quantity(topic.partition_count, "partition")
        yield f"topic {topic.topic}: {count}; {own or 'no own settings'}{withheld}"
    for group in snapshot.groups:
        yield f"group {group.group}: {quantity(len(group.offsets), 'committed offset')} ({group.protocol})"
    if snapshot.acls is not None:
        yield quantity(len(snapshot.acls), "ACL")
    if snapshot.schemas is not None:
        yield quantity(len(snapshot.schemas.versions), "schema version")
    for left in snapshot.not_held:
        yield f"not held: {left.kind}{' ' * bool(left.name)}{left.name}: {left.reason}"


_STORED: Final[Row[StoredSnapshot]] = Row(
    field("cluster_id", lambda one: one.cluster_id, text("CLUSTER")),
    field("name", lambda one: one.name, text("SNAPSHOT")),
    field("stored_size", lambda one: one.size, number("SIZE"), human_bytes),
)
_REGISTERED: Final = Words(
    noun="schema",
    done="registered",
    doing="registering",
    show=lambda outcome, verb: f"{verb:<10} {outcome.name}: {outcome.reason}",
    left={"there": "there already"},
    also={"deleted": "soft-deleted", "set": "set in compatibility", "reset": "reset in mode"},
    none="no schemas in the snapshot",
    has_sizes=False,
)
