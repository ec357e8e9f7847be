"""Data keys of segments, wrapped by another key pair.

It lies apart from the bucket, which imports it once it is asked for: it needs the key ring.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from tieredstore.api.outcomes import Outcome, of_rotation
from tieredstore.errors import ConfigError
from tieredstore.ops import steps
from tieredstore.ops.keys.rotation import Rotation
from tieredstore.ops.keys.use import note_rotated
from tieredstore.ops.listing import list_encrypted
from tieredstore.remote.key_ring import key_ring_of

if TYPE_CHECKING:
    from tieredstore.api.scopes import Scopes
    from tieredstore.ops.bucket import Bucket as OpenBucket


def rotate_segments(opened: OpenBucket, scopes: Scopes, parallel: int) -> Callable[[bool], Generator[Outcome]]:
    """What rotates the segments in scope, or says what it would do. ConfigError without encryption."""
    opened.refuse_raw("keys rotate", "nothing of it is encrypted")
    ring = key_ring_of(opened.settings)
    if ring is None:
        raise ConfigError(
            "the settings have no key ring to rotate to: set encryption.enabled, encryption.key.pair.id (the new pair) "
            "and encryption.key.pairs (the new pair and the old ones)"
        )
    chosen = list(scopes.of(opened.store, opened.prefix))

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        noted: set[str] = set()
        rotation = Rotation(opened.store, ring, rules=opened.manifest_rules, dry_run=dry_run, parallel=parallel)
        for scope in chosen:
            listed = list_encrypted(opened.store, opened.prefix, scope)
            for step in rotation.run(listed):
                is_first = step.outcome is steps.Outcome.ROTATED and step.key_id not in noted
                if is_first and step.key_id is not None and not dry_run:
                    noted.add(step.key_id)
                    note_rotated(opened.store, opened.prefix, step.key_id)  # also if this is killed
                yield of_rotation(step, dry_run=dry_run)
        for key_id in noted:
            note_rotated(opened.store, opened.prefix, key_id)  # readers' caches forget from now on

    return outcomes
