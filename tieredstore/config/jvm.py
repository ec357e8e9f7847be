"""Properties that only the JVM plugin uses: known and checked here, then ignored or refused."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from tieredstore.config.fields import SettingsGroup
from tieredstore.config.values import BOOLEAN, choice, integer, java_class, long, string


def _no_iceberg(text: str) -> str:
    # Refuse Iceberg: a broker that writes Iceberg tables stores no segments that could be read here.
    if text == "iceberg":
        raise ValueError("Iceberg tables are not written or read here; only segments in Kafka's own format are")
    if text != "kafka":
        raise ValueError
    return text


def _no_provider(_text: str) -> str:
    raise ValueError(
        "a Java credentials provider cannot run here, and no other identity replaces it; use "
        "storage.aws.access.key.id, storage.aws.credentials.file or the SDK's own chain"
    )


class JvmProperties(SettingsGroup):
    """Properties that only the plugin uses; values are checked as the plugin checks them."""

    segment_format: Annotated[str, string("kafka (iceberg is refused)", _no_iceberg)] = Field(
        default="kafka", alias="segment.format", description="Format of the stored segments."
    )
    metrics_num_samples: Annotated[int, integer(1)] = Field(
        default=2, alias="metrics.num.samples", description="Samples kept for a metric."
    )
    metrics_sample_window_ms: Annotated[int, long(1)] = Field(
        default=30000, alias="metrics.sample.window.ms", description="Time that a sample spans."
    )
    metrics_recording_level: Annotated[str, choice("INFO", "DEBUG", "TRACE")] = Field(
        default="INFO", alias="metrics.recording.level", description="Which metrics are recorded."
    )
    overwrite_enabled: Annotated[bool, BOOLEAN] = Field(
        default=False,
        alias="storage.overwrite.enabled",
        description="For the file system store; the plugin always overwrites anyway.",
    )
    credentials_provider_class: Annotated[str | None, java_class("not set", _no_provider)] = Field(
        default=None,
        alias="storage.aws.credentials.provider.class",
        description="Java class that finds AWS credentials.",
    )
    structure_provider_class: Annotated[str | None, java_class("", str)] = Field(
        default=None, alias="structure.provider.class", description="Source of record schemas, for Iceberg."
    )
    iceberg_namespace: Annotated[str | None, string()] = Field(
        default=None, alias="iceberg.namespace", description="Namespace of the tables."
    )
    iceberg_catalog_class: Annotated[str | None, java_class("", str)] = Field(
        default=None, alias="iceberg.catalog.class", description="Catalog of the tables."
    )
    iceberg_cache_enabled: Annotated[bool, BOOLEAN] = Field(
        default=True, alias="iceberg.catalog.cache.enabled", description="Cache the catalog."
    )
    iceberg_cache_expiration_ms: Annotated[int, long(1)] = Field(
        default=600000,
        alias="iceberg.catalog.cache.expiration.ms",
        description="Time that an entry of that cache lives.",
    )


FAMILIES: Final = {
    "structure.provider.serde.": "Handed to the schema registry's deserializers, for Iceberg.",
    "iceberg.catalog.": "Handed to the catalog.",
}
"""Prefixes under which every property name is accepted."""

OLD_NAMES: Final = {"chunk.cache.": "fetch.chunk.cache.", "segment.manifest.cache.": "fetch.manifest.cache."}
"""Property prefixes of older plugin versions, each with today's prefix. Today's plugin silently ignores the old
prefixes.
"""
