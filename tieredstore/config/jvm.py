"""Properties that only the JVM plugin uses: known and checked here, then ignored or refused."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from tieredstore.config.fields import SettingsGroup
from tieredstore.config.values import BOOLEAN, choice, integer, java_class, long, string


def _no_iceberg(text: str) -> str:
    # Refuse Iceberg, because a broker that writes Iceberg tables stores no segments that could be read here.
    if text == "iceberg":
        raise ValueError("segments can only be stored in Kafka's own format; set segment.format to kafka")
    if text != "kafka":
        raise ValueError
    return text


def _no_provider(_text: str) -> str:
    raise ValueError(
        "tieredstore cannot run a Java class; remove this property, and set storage.aws.access.key.id or "
        "storage.aws.credentials.file, or let the AWS SDK find credentials"
    )


class JvmProperties(SettingsGroup):
    """Properties that only the plugin uses; values are checked as the plugin checks them."""

    segment_format: Annotated[str, string("kafka (iceberg is an error)", _no_iceberg)] = Field(
        default="kafka", alias="segment.format", description="Format of the stored segments."
    )
    metrics_num_samples: Annotated[int, integer(1)] = Field(
        default=2, alias="metrics.num.samples", description="Number of samples that the plugin keeps for a metric."
    )
    metrics_sample_window_ms: Annotated[int, long(1)] = Field(
        default=30000, alias="metrics.sample.window.ms", description="Time that one sample of a metric covers."
    )
    metrics_recording_level: Annotated[str, choice("INFO", "DEBUG", "TRACE")] = Field(
        default="INFO", alias="metrics.recording.level", description="Level of the metrics that the plugin records."
    )
    overwrite_enabled: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="storage.overwrite.enabled",
        description="Let the file system store overwrite files. The plugin always overwrites files.",
    )
    credentials_provider_class: Annotated[str | None, java_class("not set", _no_provider)] = Field(
        default=None,
        alias="storage.aws.credentials.provider.class",
        description="Java class that finds AWS credentials.",
    )
    structure_provider_class: Annotated[str | None, java_class("", str)] = Field(
        default=None,
        alias="structure.provider.class",
        description="Java class that finds the schemas of records for Iceberg.",
    )
    iceberg_namespace: Annotated[str | None, string()] = Field(
        default=None, alias="iceberg.namespace", description="Namespace of the Iceberg tables."
    )
    iceberg_catalog_class: Annotated[str | None, java_class("", str)] = Field(
        default=None, alias="iceberg.catalog.class", description="Java class of the Iceberg catalog."
    )
    iceberg_cache_enabled: Annotated[bool, BOOLEAN] = Field(
        default=True, alias="iceberg.catalog.cache.enabled", description="Cache the Iceberg catalog."
    )
    iceberg_cache_expiration_ms: Annotated[int, long(1)] = Field(
        default=600000,
        alias="iceberg.catalog.cache.expiration.ms",
        description="Time for which the cache of the Iceberg catalog keeps an entry.",
    )


FAMILIES: Final = {
    "structure.provider.serde.": "Properties of the schema registry's deserializers, for Iceberg.",
    "iceberg.catalog.": "Properties of the Iceberg catalog.",
}
"""Prefixes under which every property name is accepted."""

OLD_NAMES: Final = {"chunk.cache.": "fetch.chunk.cache.", "segment.manifest.cache.": "fetch.manifest.cache."}
"""Property prefixes of older plugin versions, each with today's prefix. Today's plugin silently ignores the old
prefixes.
"""
