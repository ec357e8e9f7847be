"""Settings of the uploader: ``uploader.*``, in the same source as the settings of the destination store.

Only the uploader reads their values, with or without the prefix ``rsm.config.``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import Field, SecretStr

from tieredstore.config.endpoint import PATTERNS
from tieredstore.config.fields import SettingsGroup, SettingsSection
from tieredstore.config.names import check_names
from tieredstore.config.pinterest import translate
from tieredstore.config.properties import OwnProperties, own_properties, texts_of
from tieredstore.config.source import SettingsReader
from tieredstore.config.values import BOOLEAN, FOLDERS, NAME, PATH, choice, host_and_port, integer, long, string, words
from tieredstore.model import GivenProperties, can_be_topic

_UPLOADER: Final = "uploader."


def parse_topic_ms(text: str) -> tuple[str, int]:
    """Return topic and milliseconds of ``orders=86400000``; raise ValueError for any other form."""
    topic, _, milliseconds = text.rpartition("=")
    if not can_be_topic(topic) or not re.fullmatch(r"-1|[0-9]{1,18}", milliseconds, re.ASCII):
        raise ValueError
    return topic, int(milliseconds)


class UploaderSettings(SettingsGroup):
    """Settings of the uploader: where it reads, what it uploads, and how.

    ``kafka`` holds properties of the Kafka client, as pairs of name and text.
    """

    client_properties: ClassVar[str] = "uploader.kafka."
    beside: ClassVar[str] = _UPLOADER

    server_properties: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="uploader.server.properties",
        description="The broker's settings file. It supplies log directories, id and listener if they are "
        "not set here.",
    )
    log_dirs: Annotated[tuple[Path, ...], FOLDERS] = Field(
        default=(), alias="uploader.log.dirs", description="The broker's log directories."
    )
    broker_id: Annotated[int | None, integer(0)] = Field(
        default=None, alias="uploader.broker.id", description="The broker's id (`node.id`)."
    )
    leadership: Annotated[str, NAME] = Field(
        default="auto",
        alias="uploader.leadership",
        description="How to find the partitions that this broker leads. `auto`: ask the cluster. "
        "`zookeeper`: watch the cluster's ZooKeeper. `static`: take all partitions on disk. Or a Python class "
        "`module.Class`, a subclass of `tieredstore.uploader.Leadership`.",
    )
    zookeeper_connect: Annotated[str | None, NAME] = Field(
        default=None,
        alias="uploader.zookeeper.connect",
        description="ZooKeeper's servers, `host:port,…/chroot`. If unset, they come from the broker's settings file.",
    )
    include: Annotated[tuple[str, ...], PATTERNS] = Field(
        default=(".*",),
        alias="uploader.topics.include",
        description="Topics to upload. A pattern must match a topic's whole name.",
    )
    exclude: Annotated[tuple[str, ...], PATTERNS] = Field(
        default=(),
        alias="uploader.topics.exclude",
        description="Topics not to upload, even if `uploader.topics.include` matches them.",
    )
    internal_topics: Annotated[bool, BOOLEAN] = Field(
        default=False, alias="uploader.internal.topics", description="Also upload topics whose names begin with `__`."
    )
    force_topics: Annotated[tuple[str, ...], words("topics, separated by commas", NAME.parse)] = Field(
        default=(),
        alias="uploader.force.topics",
        description="Topics to upload even if they are compacted, or tiered by the broker.",
    )
    start: Annotated[str, choice("earliest", "latest")] = Field(
        default="earliest",
        alias="uploader.start",
        description="Where to begin in a new partition. `earliest`: with all segments on disk. `latest`: "
        "with the segments that the broker closes from now on.",
    )
    concurrent_uploads: Annotated[int, integer(1, 256)] = Field(
        default=10, alias="uploader.concurrent.uploads", description="Number of partitions to upload in parallel."
    )
    scan_interval_ms: Annotated[int, long(100)] = Field(
        default=5000,
        alias="uploader.scan.interval.ms",
        description="Time between scans of the log directories. Scans find what file system notifications miss.",
    )
    hold_dir: Annotated[tuple[Path, ...], FOLDERS] = Field(
        default=(),
        alias="uploader.hold.dir",
        description=(
            "Folders for hard links to segments that are not uploaded yet. The links keep the "
            "segments if the broker's retention deletes them while no uploader runs. Each file system with log "
            "directories needs such a folder, outside of the log directories."
        ),
    )
    hold_max_files: Annotated[int, integer(10)] = Field(
        default=10000,
        alias="uploader.hold.max.files",
        description="Maximum number of segment files that the uploader keeps open until they are uploaded.",
    )
    hold_min_free_percent: Annotated[int, integer(0, 99)] = Field(
        default=10,
        alias="uploader.hold.min.free.percent",
        description=(
            "If less disk space than this is free, release held files that the broker has deleted, without "
            "uploading them."
        ),
    )
    upload_timeout_ms: Annotated[int, long(1000)] = Field(
        default=300000,
        alias="uploader.upload.timeout.ms",
        description="Time limit of one attempt to upload a segment; waits for the rate limit do not count.",
    )
    check_crcs: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="uploader.check.crcs",
        description="Check the checksums of all batches before an upload.",
    )
    retention_ms: Annotated[int, long(-1)] = Field(
        default=-1,
        alias="uploader.retention.ms",
        description="Delete a stored segment when all its records are older than this, if this broker "
        "leads the partition; -1: never.",
    )
    retention_topics: Annotated[
        tuple[str, ...], words("topics, each with `=` and its milliseconds, separated by commas", parse_topic_ms)
    ] = Field(
        default=(),
        alias="uploader.retention.topics",
        description="Topics with another age than `uploader.retention.ms`: `orders=86400000,clicks=-1`.",
    )
    retention_bytes: Annotated[int, long(-1)] = Field(
        default=-1,
        alias="uploader.retention.bytes",
        description=(
            "Keep at least this many stored log bytes of each partition that this broker leads. Older "
            "segments are deleted; -1: keep all."
        ),
    )
    retention_dry_run: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="uploader.retention.dry.run",
        description="Log what retention would delete, and delete nothing.",
    )
    retention_interval_ms: Annotated[int, long(1000)] = Field(
        default=3600000,
        alias="uploader.retention.interval.ms",
        description="Time between two checks for segments to delete by retention.",
    )
    snapshots_enabled: Annotated[bool, BOOLEAN] = Field(
        default=True,
        alias="uploader.snapshots.enabled",
        description=(
            "Write an hourly snapshot of the cluster if a broker answers: topic settings, ACLs, "
            "group offsets. All uploaders of a cluster together write one snapshot per hour."
        ),
    )
    snapshots_retention_ms: Annotated[int, long(-1)] = Field(
        default=2592000000,
        alias="uploader.snapshots.retention.ms",
        description="Age at which snapshots are deleted, except the newest snapshot; -1: never.",
    )
    snapshots_registry_config: Annotated[Path | None, PATH] = Field(
        default=None,
        alias="uploader.snapshots.registry.config",
        description=(
            "Properties file of a schema registry (`schema.registry.url`, logins). Snapshots then "
            "include the registry's schemas."
        ),
    )
    nice: Annotated[int, integer(0, 19)] = Field(
        default=0,
        alias="uploader.nice",
        description="Niceness of the process. With a higher niceness, the broker gets more processor time.",
    )
    drain_ms: Annotated[int, long(0)] = Field(
        default=60000, alias="uploader.drain.ms", description="Longest time to finish work in progress after SIGTERM."
    )
    listen: Annotated[tuple[str, int] | None, string("host:port", host_and_port)] = Field(
        default=None,
        alias="uploader.listen",
        description="Address at which the uploader serves `/metrics`, `/healthz`, `/lag` and `/readyz`.",
    )
    metrics_topics: Annotated[tuple[str, ...], PATTERNS] = Field(
        default=(),
        alias="uploader.metrics.topics",
        description=(
            "Topics with their own lag metric (label `topic`): the first 100 matches by name. The "
            "lags of all other topics are summed as `(other)`. A pattern must match a topic's whole name."
        ),
    )
    kafka: tuple[tuple[str, SecretStr], ...] = ()


def uploader_settings_from(
    properties: GivenProperties, *, base_dir: Path | None = None, source: str = "settings"
) -> UploaderSettings:
    """Return the uploader's settings of a mapping; raise ConfigError with all problems, one per line."""
    properties = translate(texts_of(properties, source), source)
    own = own_properties(properties, source)
    beside = {name: properties[name] for name in own.others if name.startswith(_UPLOADER)}
    reader = SettingsReader(OwnProperties(source, "", {**own.texts, **beside}), base_dir or Path())
    check_names(reader, ("storage.",))
    reader.problems = [problem for problem in reader.problems if problem.name.startswith(_UPLOADER)]
    return reader.result(reader.read(UploaderSettings))


SECTIONS: Final = (
    SettingsSection(
        "The uploader",
        "Only [the uploader](../how-to/uploader.md) reads these, with or without `rsm.config.`. "
        f"`{UploaderSettings.client_properties}*` are properties of its Kafka client.",
        (UploaderSettings,),
    ),
)
