from tieredstore.format.manifest import SegmentManifest
from tieredstore.format.manifest_rules import KnownSegment, ManifestRules
from tieredstore.model import RemoteLogSegmentId, RemoteLogSegmentMetadata

def read_written(raw: bytes, known: KnownSegment, rules: ManifestRules, /) -> SegmentManifest | None: ...
def written_metadata(
    raw: bytes, segment_id: RemoteLogSegmentId, start_offset: int, encryption_required: bool, tells: bool, /
) -> RemoteLogSegmentMetadata | None: ...
