"""The segments in a store, found by listing it, without a broker. The segments can also be read from the brokers'
metadata topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.catalog.catalog import Catalog, Incarnation, PartitionSegments
    from tieredstore.catalog.catalog_file import CatalogFile
    from tieredstore.catalog.lineage import Gap, Lineage, Span, Superseded
    from tieredstore.catalog.listing import SegmentObjects, list_segments
    from tieredstore.catalog.planning import catalog_of_metadata_topic, load_catalog
    from tieredstore.catalog.problems import Problem, ProblemKind
    from tieredstore.catalog.stored import StoredSegment, load_segment, load_segments
    from tieredstore.catalog.timestamps import (
        BatchDecoding,
        OffsetAndTimestamp,
        first_timestamp,
        offset_for_time,
        offset_range,
        offsets_for_times,
    )

__all__ = [
    "BatchDecoding",
    "Catalog",
    "CatalogFile",
    "Gap",
    "Incarnation",
    "Lineage",
    "OffsetAndTimestamp",
    "PartitionSegments",
    "Problem",
    "ProblemKind",
    "SegmentObjects",
    "Span",
    "StoredSegment",
    "Superseded",
    "catalog_of_metadata_topic",
    "first_timestamp",
    "list_segments",
    "load_catalog",
    "load_segment",
    "load_segments",
    "offset_for_time",
    "offset_range",
    "offsets_for_times",
]


def __getattr__(name: str) -> object:
    """Import a name's module on first use, because a command that only lists does not need the modules that read
    manifests and logs.
    """
    match name:
        case "Catalog" | "Incarnation" | "PartitionSegments":
            from tieredstore.catalog import catalog  # noqa: PLC0415  see above

            return getattr(catalog, name)
        case "CatalogFile":
            from tieredstore.catalog import catalog_file  # noqa: PLC0415

            return getattr(catalog_file, name)
        case "Gap" | "Lineage" | "Span" | "Superseded":
            from tieredstore.catalog import lineage  # noqa: PLC0415

            return getattr(lineage, name)
        case "SegmentObjects" | "list_segments":
            from tieredstore.catalog import listing  # noqa: PLC0415

            return getattr(listing, name)
        case "catalog_of_metadata_topic" | "load_catalog":
            from tieredstore.catalog import planning  # noqa: PLC0415

            return getattr(planning, name)
        case "Problem" | "ProblemKind":
            from tieredstore.catalog import problems  # noqa: PLC0415

            return getattr(problems, name)
        case "StoredSegment" | "load_segment" | "load_segments":
            from tieredstore.catalog import stored  # noqa: PLC0415

            return getattr(stored, name)
        case _ if name in __all__:
            from tieredstore.catalog import timestamps  # noqa: PLC0415

            return getattr(timestamps, name)
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
