# What the product and its tests use of the administrative client; the library does not say what its futures return.

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Self

from confluent_kafka import Uuid
from confluent_kafka._model import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    IsolationLevel,
    Node,
    TopicCollection,
)
from confluent_kafka.admin._acl import AclOperation as AclOperation
from confluent_kafka.admin._acl import AclPermissionType as AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType as AlterConfigOpType
from confluent_kafka.admin._config import ConfigSource as ConfigSource
from confluent_kafka.admin._metadata import ClusterMetadata as ClusterMetadata
from confluent_kafka.admin._resource import ResourcePatternType as ResourcePatternType
from confluent_kafka.admin._resource import ResourceType as ResourceType
from confluent_kafka.cimpl import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import NewPartitions as NewPartitions
from confluent_kafka.cimpl import NewTopic as NewTopic

class OffsetSpec:
    @classmethod
    def earliest(cls) -> OffsetSpec: ...
    @classmethod
    def latest(cls) -> OffsetSpec: ...
    @classmethod
    def for_timestamp(cls, timestamp: int) -> OffsetSpec: ...

class ListOffsetsResultInfo:
    offset: int
    timestamp: int
    leader_epoch: int | None

class DeletedRecords:
    low_watermark: int

class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource | int
    is_read_only: bool
    is_default: bool
    is_sensitive: bool
    is_synonym: bool
    synonyms: dict[str, ConfigEntry]
    def __init__(
        self, name: str, value: str | None, *, incremental_operation: AlterConfigOpType | None = None
    ) -> None: ...

class ConfigResource:
    restype: ResourceType
    name: str
    def __init__(
        self, restype: ResourceType, name: str, *, incremental_configs: list[ConfigEntry] | None = None
    ) -> None: ...

class TopicPartitionInfo:
    id: int
    leader: Node | None
    replicas: list[Node]
    isr: list[Node]

class TopicDescription:
    name: str
    topic_id: Uuid | None
    is_internal: bool
    partitions: list[TopicPartitionInfo]
    authorized_operations: list[AclOperation] | None

class DescribeClusterResult:
    cluster_id: str | None
    controller: Node | None
    nodes: list[Node]
    authorized_operations: list[AclOperation] | None

class AclBinding:
    restype: ResourceType
    name: str
    resource_pattern_type: ResourcePatternType
    principal: str
    host: str
    operation: AclOperation
    permission_type: AclPermissionType
    def __init__(
        self,
        restype: ResourceType,
        name: str,
        resource_pattern_type: ResourcePatternType,
        principal: str,
        host: str,
        operation: AclOperation,
        permission_type: AclPermissionType,
    ) -> None: ...

class AclBindingFilter:
    def __init__(
        self,
        restype: ResourceType,
        name: str | None,
        resource_pattern_type: ResourcePatternType,
        principal: str | None,
        host: str | None,
        operation: AclOperation,
        permission_type: AclPermissionType,
    ) -> None: ...

class ConsumerGroupListing:
    group_id: str
    is_simple_consumer_group: bool
    state: ConsumerGroupState
    type: ConsumerGroupType

class ListConsumerGroupsResult:
    valid: list[ConsumerGroupListing]
    errors: list[KafkaError]

class MemberAssignment:
    topic_partitions: list[TopicPartition]

class MemberDescription:
    member_id: str
    client_id: str
    host: str
    assignment: MemberAssignment | None
    target_assignment: MemberAssignment | None
    group_instance_id: str | None

class ConsumerGroupDescription:
    group_id: str
    members: list[MemberDescription]
    state: ConsumerGroupState
    type: ConsumerGroupType

class GroupMetadata:
    id: str

class AdminClient:
    def __init__(self, conf: Mapping[str, object]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...
    def alter_consumer_group_offsets(
        self, request: list[ConsumerGroupTopicPartitions], *, request_timeout: float = ...
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]: ...
    def create_acls(
        self, acls: list[AclBinding], *, request_timeout: float = ...
    ) -> dict[AclBinding, Future[None]]: ...
    def create_partitions(
        self, new_partitions: list[NewPartitions], *, request_timeout: float = ...
    ) -> dict[str, Future[None]]: ...
    def create_topics(
        self, new_topics: list[NewTopic], *, operation_timeout: float = ..., request_timeout: float = ...
    ) -> dict[str, Future[None]]: ...
    def delete_records(
        self, topic_partition_offsets: list[TopicPartition], *, request_timeout: float = ...
    ) -> dict[TopicPartition, Future[DeletedRecords]]: ...
    def delete_topics(
        self, topics: list[str], *, operation_timeout: float = ..., request_timeout: float = ...
    ) -> dict[str, Future[None]]: ...
    def describe_acls(
        self, acl_binding_filter: AclBindingFilter, *, request_timeout: float = ...
    ) -> Future[list[AclBinding]]: ...
    def describe_cluster(
        self, *, include_authorized_operations: bool = ..., request_timeout: float = ...
    ) -> Future[DescribeClusterResult]: ...
    def describe_configs(
        self, resources: list[ConfigResource], *, request_timeout: float = ...
    ) -> dict[ConfigResource, Future[dict[str, ConfigEntry]]]: ...
    def describe_consumer_groups(
        self, group_ids: list[str], *, request_timeout: float = ...
    ) -> dict[str, Future[ConsumerGroupDescription]]: ...
    def describe_topics(
        self, topics: TopicCollection, *, include_authorized_operations: bool = ..., request_timeout: float = ...
    ) -> dict[str, Future[TopicDescription]]: ...
    def elect_leaders(
        self, election_type: ElectionType, partitions: list[TopicPartition] | None = None
    ) -> Future[dict[TopicPartition, KafkaException | None]]: ...
    def incremental_alter_configs(
        self, resources: list[ConfigResource], *, request_timeout: float = ..., validate_only: bool = ...
    ) -> dict[ConfigResource, Future[None]]: ...
    def list_consumer_groups(
        self, *, states: AbstractSet[ConsumerGroupState] = ..., request_timeout: float = ...
    ) -> Future[ListConsumerGroupsResult]: ...
    def list_groups(self, group: str | None = None, timeout: float = ...) -> list[GroupMetadata]: ...
    def list_offsets(
        self,
        topic_partition_offsets: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: IsolationLevel = ...,
        request_timeout: float = ...,
    ) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]: ...
    def list_topics(self, topic: str | None = None, timeout: float = ...) -> ClusterMetadata: ...
    def poll(self, timeout: float = ...) -> int: ...
    def set_sasl_credentials(self, username: str, password: str) -> None: ...
