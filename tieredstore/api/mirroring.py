"""Copies segments to another bucket (``mirror``), and repairs damaged objects from the copy (``repair``).

The bucket imports this module on first use, because copying needs the codecs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

from tieredstore.api.outcomes import Outcome, Plan, of_copy
from tieredstore.ops.bucket import open_bucket
from tieredstore.ops.copies.copying import SEGMENTS_AT_ONCE, BucketCopy
from tieredstore.ops.copies.repairing import Repair
from tieredstore.remote.stores import target_settings

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.api.scopes import Scopes
    from tieredstore.ops.bucket import Bucket as OpenBucket
    from tieredstore.remote.stores import StoreLike


@contextlib.contextmanager
def _both(bucket: Bucket, target: StoreLike) -> Generator[tuple[OpenBucket, OpenBucket]]:
    source = bucket.opened()
    with open_bucket(target_settings(target, bucket.named)) as into:
        for one in (source, into):
            one.refuse_raw("mirror", "objects in this layout are the broker's files, which upload() stores from a disk")
        yield source, into


def copy_segments(
    bucket: Bucket,
    target: StoreLike,
    scopes: Scopes,
    *,
    decrypt: bool,
    new_data_keys: bool,
    read_back: bool,
    dry_run: bool,
    parallel: int | None,
) -> Generator[Outcome]:
    """Copy the segments in scope; yield each outcome."""
    with _both(bucket, target) as (source, into):
        copy = BucketCopy(
            source,
            into,
            decrypt=decrypt,
            new_data_keys=new_data_keys,
            read_back=read_back,
            dry_run=dry_run,
            parallel=SEGMENTS_AT_ONCE if parallel is None else parallel,
        )
        for scope in scopes.of(source.store, source.prefix):
            yield from (of_copy(step, dry_run=dry_run) for step in copy.run(scope))


def plan_repair(bucket: Bucket, target: StoreLike, scopes: Scopes, *, parallel: int | None) -> Plan:
    """Return a plan to replace damaged objects of the target by the same objects of this bucket."""

    def outcomes(dry_run: bool) -> Generator[Outcome]:
        with _both(bucket, target) as (source, into):
            repair = Repair(source, into, dry_run=dry_run, parallel=SEGMENTS_AT_ONCE if parallel is None else parallel)
            for scope in scopes.of(into.store, into.prefix):
                yield from (of_copy(step, dry_run=dry_run, action="repair") for step in repair.run(scope))

    return Plan("repair", str(scopes), outcomes)
