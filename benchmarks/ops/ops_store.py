"""Folders of many segments for the benchmarks of operators' tools: real keys and manifests, logs without content."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from Crypto.PublicKey import RSA

from benchmarks.bench_catalog import StoreBuilder
from tests.support.golden.keys import pair_in
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import SegmentManifest, WrappedDataKey
from tieredstore.format.sizes import ENCRYPTION_OVERHEAD
from tieredstore.model import RemoteLogSegmentMetadata
from tieredstore.transform.keyring import KeyRing

PAIRS: Final = ("old", "new")
_WRAPPINGS: Final = 64
"""The number of data keys that all manifests share, because wrapping a key for each manifest would take longer than
writing the manifests."""
_LONG_AGO: Final = (1_700_000_000, 1_700_000_000)


def key_files(folder: Path, bits: int) -> Mapping[str, tuple[Path, Path]]:
    """Write two new key pairs to files."""
    files: dict[str, tuple[Path, Path]] = {}
    for name in PAIRS:
        pair = RSA.generate(bits)
        public, private = folder / f"{name}.public.pem", folder / f"{name}.private.pem"
        public.write_bytes(pair.public_key().export_key())
        private.write_bytes(pair.export_key(pkcs=8))
        files[name] = public, private
    return files


def key_settings(files: Mapping[str, tuple[Path, Path]], active: str) -> dict[str, str]:
    """Return the settings of a key ring with these pairs."""
    texts = {"encryption.enabled": "true", "encryption.key.pair.id": active, "encryption.key.pairs": ",".join(files)}
    for name, (public, private) in files.items():
        texts[f"encryption.key.pairs.{name}.public.key.file"] = str(public)
        texts[f"encryption.key.pairs.{name}.private.key.file"] = str(private)
    return texts


def ring_of(files: Mapping[str, tuple[Path, Path]], active: str) -> KeyRing:
    """Return a key ring with these pairs."""
    return KeyRing(active, {name: pair_in(*pair) for name, pair in files.items()})


class EncryptedStoreBuilder(StoreBuilder):
    """Segments whose data keys are wrapped by one pair; unencrypted if ``ring`` is None."""

    def __init__(self, folder: Path, segments: int, ring: KeyRing | None) -> None:
        super().__init__(folder, segments)
        self._wrapped = [] if ring is None else [
            WrappedDataKey(ring.active_id, ring.wrap(os.urandom(32)), os.urandom(32)) for _ in range(_WRAPPINGS)
        ]  # fmt: skip

    def _manifest(self, metadata: RemoteLogSegmentMetadata, index_size: int) -> bytes:
        if not self._wrapped:
            return super()._manifest(metadata, index_size)
        raw = super()._manifest(metadata, index_size + ENCRYPTION_OVERHEAD)
        encryption = self._wrapped[self.random.randrange(_WRAPPINGS)]
        return replace(SegmentManifest.from_bytes(raw), encryption=encryption).to_bytes()

    def build(self) -> None:
        """Write the objects; logs and indexes are sparse files of the right size."""
        super().build()
        for path in self.folder.rglob(f"*.{Suffix.MANIFEST.value}"):
            manifest = SegmentManifest.from_bytes(path.read_bytes())
            for suffix, size in (
                (Suffix.LOG, manifest.chunk_index.stored_size),
                (Suffix.INDEXES, manifest.segment_indexes.total_size),
            ):
                with path.with_suffix(f".{suffix.value}").open("r+b") as file:
                    file.truncate(size)


def without_manifests(folder: Path, every: int) -> int:
    """Turn each ``every``-th segment into garbage: delete the manifest, age the other objects. Return their number."""
    manifests = sorted(folder.rglob(f"*.{Suffix.MANIFEST.value}"))[::every]
    for path in manifests:
        path.unlink()
        for suffix in (Suffix.LOG, Suffix.INDEXES):
            os.utime(path.with_suffix(f".{suffix.value}"), _LONG_AGO)
    return len(manifests)
