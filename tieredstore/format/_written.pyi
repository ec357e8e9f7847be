from tieredstore.format.manifest import SegmentManifest
from tieredstore.format.manifest_rules import KnownSegment, ManifestRules

def read_written(raw: bytes, known: KnownSegment, rules: ManifestRules, /) -> SegmentManifest | None: ...
