"""The settings of a remote storage manager."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

from pydantic import Field, SecretStr, model_validator

from tieredstore.config.encryption import EncryptionSettings
from tieredstore.config.endpoint import LAYOUT, EndpointSettings
from tieredstore.config.fetch import FetchSettings
from tieredstore.config.fields import SettingsGroup, broken_rule
from tieredstore.config.storage import BACKEND_CLASS, ProxySettings
from tieredstore.config.values import BOOLEAN, PATH, choices, integer, long, string
from tieredstore.process.parallel import READERS

if TYPE_CHECKING:
    from tieredstore.config.clouds import AzureSettings, GcsSettings, S3Settings

GroupT = TypeVar("GroupT", bound=SettingsGroup)


class Settings(SettingsGroup):
    """All settings, typed and checked; frozen and picklable.

    Only the store that ``storage_backend`` names has settings here: in ``cloud``, and in ``s3``, ``gcs`` or ``azure``.
    The settings of other stores are None. ``proxy`` applies to ``s3``, ``gcs`` and ``azure``.

    A user's own store class gets every ``storage.*`` property in ``storage_options``, as pairs of name (without
    ``storage.``) and text. Paths need not exist. Secrets are pydantic's ``SecretStr``.

    Example::

        settings = tieredstore.open("store.properties").settings
        print(settings.chunk_size, settings.compression_enabled)
    """

    storage_backend: Annotated[str, BACKEND_CLASS] = Field(
        alias="storage.backend.class",
        description="The object store. A Python class must be a subclass of `tieredstore.backends.ObjectStore`.",
    )
    storage_root: Annotated[Path | None, PATH] = Field(
        default=None, alias="storage.root", description="Folder of the file system store. It must exist."
    )
    # At most half of Java's greatest int. An incompressible chunk grows when stored, and its stored size must fit an
    # int too.
    chunk_size: Annotated[int, integer(1, 1073741823)] = Field(
        default=4194304,
        alias="chunk.size",
        description=(
            "Bytes of a chunk before compression and encryption. You may change this size: each manifest records its "
            "segment's chunk size."
        ),
    )
    key_prefix: Annotated[str, string()] = Field(
        default="",
        alias="key.prefix",
        description=(
            "Prefix of all object keys. Objects under other prefixes are not found. If the prefix is a folder, end it "
            "in /."
        ),
    )
    key_prefix_mask: Annotated[bool, BOOLEAN] = Field(
        default=False, alias="key.prefix.mask", description="Hide the prefix in messages."
    )
    compression_enabled: Annotated[bool, BOOLEAN] = Field(
        default=False, alias="compression.enabled", description="Compress each chunk with zstd."
    )
    compression_heuristic_enabled: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="compression.heuristic.enabled",
        description="Do not compress a segment if its first batch is already compressed. Needs compression.enabled.",
    )
    compression_level: Annotated[int, integer(1, 22)] = Field(
        default=3,
        alias="compression.level",
        description="Level of zstd. The plugin lacks this property and always uses 3.",
    )
    custom_metadata_fields: Annotated[tuple[str, ...], choices("REMOTE_SIZE", "OBJECT_PREFIX", "OBJECT_KEY")] = Field(
        default=(),
        alias="custom.metadata.fields.include",
        description=(
            "Fields to return to Kafka after a copy. All three fields together may exceed Kafka's limit of 128 bytes."
        ),
    )
    upload_rate_limit: Annotated[int | None, integer(1048576, 1000000000)] = Field(
        default=None,
        alias="upload.rate.limit.bytes.per.second",
        description="Limit for the sum of all uploads of the process. If unset, there is no limit.",
    )
    upload_stall_timeout_ms: Annotated[int, long(1)] = Field(
        default=600000,
        alias="upload.stall.timeout.ms",
        description=(
            "An upload to a cloud fails if it makes no progress for this time. Waits for the rate limit are not "
            "part of this time. The plugin lacks this property."
        ),
    )
    upload_max_age_ms: Annotated[int, long(60000)] = Field(
        default=43200000,
        alias="upload.max.age.ms",
        description=(
            "A copy of a segment fails if it takes longer than this. `gc` keeps unreferenced objects until they have "
            "twice this age. Use the same value for all writers of a bucket. The plugin lacks this property."
        ),
    )
    transform_thread_pool_size: Annotated[int, integer(0, 1024)] = Field(
        default=0,
        alias="transform.thread.pool.size",
        description=(
            "Number of threads that compress and encrypt. 0: one per processor. The plugin lacks this property."
        ),
    )
    encryption: EncryptionSettings | None = None
    fetch: FetchSettings = FetchSettings()
    endpoint: EndpointSettings = EndpointSettings()
    cloud: SettingsGroup | None = None
    proxy: ProxySettings | None = None
    storage_options: tuple[tuple[str, SecretStr], ...] = ()
    sections: tuple[SettingsGroup, ...] = ()
    """The settings groups of optional parts that have properties in the source."""

    @property
    def s3(self) -> S3Settings | None:
        """Settings of Amazon S3 and compatible stores; None for other stores."""
        return cast("S3Settings", self.cloud) if self.storage_backend == "s3" else None

    @property
    def gcs(self) -> GcsSettings | None:
        """Settings of Google Cloud Storage; None for other stores."""
        return cast("GcsSettings", self.cloud) if self.storage_backend == "gcs" else None

    @property
    def azure(self) -> AzureSettings | None:
        """Settings of Azure Blob Storage; None for other stores."""
        return cast("AzureSettings", self.cloud) if self.storage_backend == "azure" else None

    def section(self, group: type[GroupT]) -> GroupT:
        """Return an optional part's group. If the source has none of its properties, return the defaults."""
        return next((each for each in self.sections if isinstance(each, group)), None) or group()

    def with_section(self, group: SettingsGroup) -> Settings:
        """Return these settings with ``group``, the settings of an optional part, in place of an earlier group of the
        same class."""
        others = (each for each in self.sections if not isinstance(each, type(group)))
        return self.model_copy(update={"sections": (*others, group)})

    @property
    def requests_at_once(self) -> int:
        """The maximum number of parallel requests of a reader, including requests for manifests and indexes. This
        maximum is at least the number of threads that load a catalog.

        A store's connection pool has this size.
        """
        lookups = self.fetch.manifest_cache.thread_pool_size or os.cpu_count() or 1
        return max(READERS, self.fetch.parallelism + lookups)

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        if self.storage_backend == "filesystem" and self.storage_root is None:
            raise broken_rule("storage.root", "is missing: set the folder of the file system store")
        if self.endpoint.is_raw and (self.encryption is not None or self.compression_enabled):
            raise broken_rule(
                LAYOUT,
                "is pinterest, whose objects are never encrypted or compressed: turn off encryption and compression",
            )
        if self.compression_heuristic_enabled and not self.compression_enabled:
            raise broken_rule(
                "compression.heuristic.enabled", "is true, but compression.enabled is not: set both to true"
            )
        return self
