"""Takes snapshots of a running cluster, by hand or once an hour."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tieredstore.backends.base import ObjectStore, admin_of
from tieredstore.errors import RegistryError, SchemaNotFoundError
from tieredstore.format.cluster_snapshot import ClusterSnapshot, NotHeld, RegistrySchemas
from tieredstore.ops.snapshots.registry import read_schemas
from tieredstore.ops.snapshots.storing import Snapshots

if TYPE_CHECKING:
    from tieredstore.live.cluster_state import ClusterState
    from tieredstore.schema_registry import SchemaRegistry

_NO_CLUSTER_RIGHT = "the login may not describe the cluster"


def take_snapshot(store: ObjectStore, cluster: ClusterState, registry: SchemaRegistry | None) -> ClusterSnapshot:
    """Read the cluster and the registry, and return a new snapshot. The snapshot names everything that could not be
    read. ``store`` is used only as a clock.

    Raise BrokerError if the brokers do not answer. A registry that fails raises no error, but is named in the snapshot.
    """
    taken_ms = _now_ms(store)
    cluster_id = cluster.cluster_id()
    topics, not_held = cluster.topic_settings()
    acls = cluster.acls()
    if acls is None:
        not_held.append(NotHeld("acls", "", _NO_CLUSTER_RIGHT))
        not_held.append(
            NotHeld("groups", "", f"{_NO_CLUSTER_RIGHT}, so only groups that the login may describe are known")
        )
    groups, groups_not_held = cluster.groups(topics)
    schemas, schemas_not_held = _schemas_of(registry)
    not_held += [*groups_not_held, *schemas_not_held]
    return ClusterSnapshot(cluster_id, taken_ms, tuple(topics), acls, tuple(groups), schemas, tuple(not_held))


def write_hourly(snapshots: Snapshots, cluster: ClusterState, registry: SchemaRegistry | None) -> bool:
    """Write the snapshot of this hour unless it exists. Return True if it was written now.

    Raise BrokerError and StoreError.
    """
    if snapshots.has(cluster.cluster_id(), _now_ms(snapshots.store)):
        return False
    return snapshots.write(take_snapshot(snapshots.store, cluster, registry), is_hourly=True)


def _schemas_of(registry: SchemaRegistry | None) -> tuple[RegistrySchemas | None, list[NotHeld]]:
    if registry is None:
        return None, [NotHeld("schemas", "", "no schema registry is named")]
    try:
        return read_schemas(registry)
    except (RegistryError, SchemaNotFoundError) as error:
        return None, [NotHeld("schemas", "", str(error))]


def _now_ms(store: ObjectStore) -> int:
    """Return the store's time, which is the same for all uploaders. A store without a clock is on this machine, so use
    this machine's clock.
    """
    now_ms = admin_of(store).now_ms()
    return int(time.time() * 1000) if now_ms is None else now_ms
