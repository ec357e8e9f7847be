"""The contents of a cluster snapshot: everything besides the segments that a restore of the cluster needs. Plain
values, written as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError, with_config

from tieredstore.errors import CorruptDataError
from tieredstore.limits import MAX_INT32, MAX_INT64
from tieredstore.versions import fault_in

_Number: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT32)]
_Moment: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT64)]


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's number of partitions and its own settings. The defaults of the cluster and of Kafka are left out.
    ``withheld`` has the names of settings whose values the brokers keep secret.
    """

    topic: str
    topic_id: str
    partition_count: Annotated[int, Field(ge=1, le=MAX_INT32)]
    replication_factor: _Number
    settings: dict[str, str]
    withheld: tuple[str, ...] = ()


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class AclEntry:
    """One ACL. Types, operation and permission are Kafka's names, such as ``TOPIC``, ``LITERAL`` and ``READ``."""

    resource_type: str
    name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset of the next record that a group reads in a partition. ``metadata`` is the text that the group
    committed with the offset.
    """

    topic: str
    partition: _Number
    offset: _Moment
    metadata: str = ""


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """All committed offsets of one consumer group. ``protocol`` is ``consumer`` for groups of KIP-848."""

    group: str
    protocol: Literal["classic", "consumer"]
    offsets: tuple[CommittedOffset, ...]


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A reference from a schema to another schema. ``name`` is the name in the schema's text that stands for
    ``subject`` and ``version``.
    """

    name: str
    subject: str
    version: _Number


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a subject in the schema registry. ``id`` is the number in messages; ``is_deleted`` means soft
    deletion.
    """

    subject: str
    version: _Number
    id: _Number
    schema_type: str
    schema: str
    references: tuple[SchemaReference, ...] = ()
    is_deleted: bool = False


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class RegistrySchemas:
    """The schemas of a registry and its compatibility level. Subjects that set their own level are listed too."""

    compatibility: str
    subject_compatibility: dict[str, str]
    versions: tuple[SchemaVersion, ...]


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class NotHeld:
    """Something that a snapshot lacks, and the reason. The kinds ``acls``, ``groups`` and ``schemas`` stand for all
    ACLs, groups or schemas, or for an unknown part of them.
    """

    kind: Literal["acls", "group", "groups", "schema", "schemas", "topic"]
    name: str
    reason: str


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Settings of a cluster's topics, its ACLs, groups' offsets and schemas, as of ``taken_ms`` by the store's clock.

    ``acls`` is None if the ACLs were not read, ``schemas`` is None if no registry was named or read. The groups'
    offsets are read one after the other, so they are of slightly different times.
    """

    cluster_id: str
    taken_ms: _Moment
    topics: tuple[TopicSettings, ...] = ()
    acls: tuple[AclEntry, ...] | None = None
    groups: tuple[GroupOffsets, ...] = ()
    schemas: RegistrySchemas | None = None
    not_held: tuple[NotHeld, ...] = ()

    def to_json(self) -> bytes:
        """Return the snapshot as JSON."""
        return _SNAPSHOT.dump_json(self)

    @classmethod
    def from_json(cls, raw: bytes, where: str) -> ClusterSnapshot:
        """Parse a snapshot; raise CorruptDataError for an invalid one. The error names the invalid field."""
        try:
            return _SNAPSHOT.validate_json(raw, strict=True)
        except ValidationError as error:
            raise CorruptDataError(f"{where} is not a valid cluster snapshot: {fault_in(error)}") from error


_SNAPSHOT: Final = TypeAdapter(ClusterSnapshot)
