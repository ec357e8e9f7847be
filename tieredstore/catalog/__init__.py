"""Which segments a store holds, by listing alone: no broker, no metadata topic (though that can be the source too)."""

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
    "list_segments",
    "load_catalog",
    "load_segment",
    "load_segments",
    "offset_for_time",
    "offset_range",
    "offsets_for_times",
]
