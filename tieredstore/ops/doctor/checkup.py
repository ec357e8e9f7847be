"""The first checks after a failure: settings, keys, store and caches.

If a check fails, all checks that do not depend on the failed check are still made. If ``write`` is true,
:func:`run_checks` writes a few objects below ``!tieredstore/doctor/``, and deletes them again. Otherwise it writes
nothing.
"""

from __future__ import annotations

import enum
import os
import shutil
import stat
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Final, TypeAlias
from uuid import uuid4

from tieredstore import __version__
from tieredstore.backends.base import BucketVersions, ObjectInfo, ObjectStore, admin_of
from tieredstore.config import Settings
from tieredstore.errors import (
    AccessDeniedError,
    NewerVersionError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreError,
    TieredStoreError,
)
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import MAX_MANIFEST_SIZE
from tieredstore.installation import attached_parts
from tieredstore.model import human_bytes
from tieredstore.ops.bucket import open_bucket
from tieredstore.ops.garbage.lifecycle import aborting_rule, least_days
from tieredstore.places.record import other_layout
from tieredstore.places.routed import Place, places_of
from tieredstore.process.parallel import READERS, in_parallel
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.remote.key_ring import key_ring_of
from tieredstore.remote.stores import NamedStore
from tieredstore.versions import (
    DIRECTORY_STATEMENT,
    HEAD_BYTES,
    KINDS,
    StateKind,
    kind_of,
    parse_release,
    version_in,
)

_WRITERS: Final = 8
_ROUNDS: Final = 3


def check_conditional_writes(store: ObjectStore, place: str) -> Iterator[str]:
    """Test the store's conditional writes. Yield a sentence for each fault. The test leaves its objects below
    ``place``."""
    taken = f"{place}/taken"
    store.put(taken, b"first")
    if _wins(partial(store.put, taken, b"second", if_absent=True)) or store.get(taken) != b"first":
        yield "a write that must only create an object replaced an existing object"
    etag = _etag(store, taken)
    store.replace(taken, b"third", etag)
    if _wins(partial(store.replace, taken, b"fourth", etag)) or store.get(taken) != b"third":
        yield "a replacement of an older version succeeded"
    with ThreadPool(_WRITERS, "tieredstore-doctor") as pool:
        for number in range(_ROUNDS):
            key = f"{place}/race-{number}"
            won = _winners(pool, [partial(store.put, key, b"%d" % n, if_absent=True) for n in range(_WRITERS)])
            if won != 1:
                yield f"{won} of {_WRITERS} concurrent creations of one object succeeded"
            etag = _etag(store, key)
            won = _winners(pool, [partial(store.replace, key, b"by %d" % n, etag) for n in range(_WRITERS)])
            if won != 1:
                yield f"{won} of {_WRITERS} concurrent replacements of one version succeeded"


def _etag(store: ObjectStore, key: str) -> str:
    etag = store.head(key).etag
    if etag is None:
        raise StoreError(f"{store.identity} returned no etag of {key!r}, which a conditional replacement needs")
    return etag


def _winners(pool: ThreadPool, writes: Sequence[Callable[[], object]]) -> int:
    return sum(in_parallel(pool, _wins, writes, at_once=_WRITERS))


def _wins(write: Callable[[], object]) -> bool:
    try:
        write()
    except PreconditionFailedError:
        return False
    return True


_PROBE_BYTES: Final = 1024
_TRIES: Final = 5
_SKEW_MS: Final = 5_000
"""The greatest clock skew that is not reported. A larger skew falsifies the ages of uploads and objects."""
_REFUSED_SKEW_MS: Final = 15 * 60_000
"""The greatest clock skew with which S3 accepts signed requests."""
_MOST_LOOKED_AT: Final = 1000
_LITTLE_DISK: Final = 0.05


class Verdict(enum.StrEnum):
    """The result of a check. The value is shown to the user."""

    GOOD = "ok"
    WARN = "warn"
    """The checked part works, but needs attention."""
    BAD = "bad"
    SKIPPED = "skipped"
    """The check was not made, for the reason in ``detail``."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the doctor: its name, its result, and a sentence about it."""

    check: str
    outcome: Verdict
    detail: str
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Milliseconds and counts by name, for scripts."""
    exit_code: int = 0
    """The exit code of the error, or 0."""


OnCheck: TypeAlias = Callable[[Check], object] | None
"""A function that is called with the result of each check."""


def run_checks(
    settings: Settings, named: NamedStore | None = None, *, write: bool = False, release: str | None = None
) -> Iterator[Check]:
    """Make the checks and yield each result. A check waits no longer than the store's own timeouts.

    ``named`` tells where the settings come from. With ``named``, also make the checks of installed optional parts. An
    entry point of ``tieredstore.checks`` names a function that takes a :class:`NamedStore` and yields results. With
    ``release``, make only the checks of :func:`check_for`.
    """
    if release is not None:
        yield from check_for(settings, release)
        return
    yield from _of_this_machine(settings)
    yield from catch_errors("keys", lambda: _of_keys(settings))
    yield from catch_errors("store", lambda: _of_store(settings, write=write))
    if named is not None:
        attached: list[Callable[[NamedStore], Iterator[Check]]] = attached_parts("tieredstore.checks")
        for checks in attached:
            yield from catch_errors("settings", partial(checks, named))


def check_for(settings: Settings, release: str, kinds: Sequence[StateKind] = KINDS) -> Iterator[Check]:
    """Yield a check for each of tieredstore's own objects (holds, watermarks and others) that an earlier ``release``
    could not read.

    The first results name the kinds of object that this release writes and ``release`` does not read. Then everything
    under the prefix is listed, and the first bytes of tieredstore's own objects are read. Raise ConfigError for an
    unknown release.
    """
    asked = parse_release(release, kinds)
    for kind in kinds:
        if kind.version > (reads := kind.version_for(asked)):
            told = f"this release writes a {kind.name} of version {kind.version}"
            yield Check("release", Verdict.WARN, f"{told}, and tieredstore {release} {_reads(reads)}")
    yield from catch_errors("store", lambda: _of_release(settings, release, asked, kinds))


def _of_release(
    settings: Settings, release: str, asked: tuple[int, int], kinds: Sequence[StateKind]
) -> Iterator[Check]:
    count = newer = 0
    with open_bucket(settings) as bucket, ThreadPool(READERS, "tieredstore-doctor") as pool:
        for place in places_of(bucket.store, bucket.prefix):
            own = ((info, kind_of(info.key, kinds)) for info in place.store.list(place.prefix))
            found = ((place.store, info, kind) for info, kind in own if kind is not None)
            for key, kind, version in in_parallel(pool, _version_of, found, at_once=4 * READERS):
                count += version is not None
                if version is None or 0 < version <= (reads := kind.version_for(asked)):
                    continue
                newer += 1
                has = f"a {kind.name} of version {version}" if version else f"a damaged {kind.name}, without a version"
                yield Check(
                    "release", Verdict.BAD, f"{key} is {has}, and tieredstore {release} {_reads(reads)}",
                    {"version": version, "reads": reads}, NewerVersionError.exit_code,
                )  # fmt: skip
    if not newer:
        yield Check(
            "release", Verdict.GOOD, f"tieredstore {release} can read all {count} objects of tieredstore's own state"
        )


def _reads(version: int) -> str:
    return f"reads up to version {version}" if version else "does not know this kind of object"


def _version_of(found: tuple[ObjectStore, ObjectInfo, StateKind]) -> tuple[str, StateKind, int | None]:
    """Return an object's key, kind and version. The version is 0 if the object states none. The version is None if the
    object was just deleted, or belongs to another tool."""
    store, info, kind = found
    try:
        head = store.get(info.key, 0, min(info.size, HEAD_BYTES))
    except ObjectNotFoundError:
        return info.key, kind, None
    version = version_in(head)
    if version is None and kind is not DIRECTORY_STATEMENT:
        return info.key, kind, 0
    return info.key, kind, version


def catch_errors(subject: str, checks: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Yield the results of ``checks``. If ``checks`` raises a TieredStoreError, yield the error as the last result."""
    try:
        yield from checks()
    except TieredStoreError as error:
        yield Check(subject, Verdict.BAD, str(error), exit_code=type(error).exit_code)


def _of_this_machine(settings: Settings) -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Check("versions", Verdict.GOOD, f"tieredstore {__version__} on Python {python}")
    cache = settings.fetch.chunk_cache
    if cache is None or cache.path is None:
        return
    folder = cache.path
    # Check the nearest folder that exists, because the cache creates its own folder.
    there = next((parent for parent in (folder, *folder.parents) if os.access(parent, os.F_OK)), folder)
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        yield Check("cache", Verdict.BAD, f"the folder {folder} of the chunk cache cannot be written", exit_code=2)
        return
    usage = shutil.disk_usage(there)
    little = usage.free < _LITTLE_DISK * usage.total
    yield Check(
        "cache",
        Verdict.WARN if little else Verdict.GOOD,
        f"the chunk cache in {folder} has {human_bytes(usage.free)} free on its disk",
        {"free_bytes": usage.free},
    )


def _of_keys(settings: Settings) -> Iterator[Check]:
    encryption = settings.encryption
    if encryption is None:
        yield Check("keys", Verdict.SKIPPED, "encryption is off: encrypted segments cannot be read")
        return
    started = time.perf_counter()
    ring = key_ring_of(settings)
    assert ring is not None
    ring.wrap_and_prove(os.urandom(32))
    ms = _ms_since(started)
    pairs = f"{len(ring.ids)} key pair{'s' if len(ring.ids) > 1 else ''}, {ring.active_id} active"
    yield Check("keys", Verdict.GOOD, f"{pairs}: wrapping and unwrapping work", {"pairs": len(ring.ids), "load_ms": ms})
    for pair in encryption.key_pairs:
        if pair.private_key_file is None or pair.kms is not None:
            continue
        mode = stat.S_IMODE(pair.private_key_file.stat().st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            yield Check(
                "keys", Verdict.WARN,
                f"{pair.private_key_file} can be read by others than its owner (mode {mode:04o}): chmod 600",
            )  # fmt: skip


def _of_store(settings: Settings, *, write: bool) -> Iterator[Check]:
    with open_bucket(settings) as bucket:
        own, *others = places_of(bucket.store, bucket.prefix)
        yield from catch_errors("store", partial(_of_place, own, settings, write=write))
        for place in others:
            named = f"{place.prefix!r} of {place.store.identity}"
            for check in catch_errors("store", partial(_of_place, place, settings, write=write)):
                # With several buckets, the text of a check must name the bucket that was checked.
                is_named = place.store.identity in check.detail
                yield check if is_named else replace(check, detail=f"{named}: {check.detail}")


def _of_place(place: Place, settings: Settings, *, write: bool) -> Iterator[Check]:
    store, prefix = place.store, place.prefix
    started = time.perf_counter()
    try:
        infos = list(islice(store.list(prefix), _MOST_LOOKED_AT))
    except AccessDeniedError as error:
        # Without any credentials, ``caller`` itself raises an error, which names the missing credentials.
        raise AccessDeniedError(f"{error}; tried as {admin_of(store).caller()}") from error
    ms = _ms_since(started)
    # Report the credentials as good, because the listing has succeeded.
    yield Check("caller", Verdict.GOOD, admin_of(store).caller() or "the store does not report the caller")
    here = f"under {prefix!r} of {store.identity}" if prefix else f"in {store.identity}"
    many = f"{_MOST_LOOKED_AT} objects or more" if len(infos) == _MOST_LOOKED_AT else f"{len(infos)} objects"
    odd = "" if infos else "; if you expected some, check storage.root, bucket and key.prefix"
    outcome = Verdict.GOOD if infos else Verdict.WARN
    yield Check("store", outcome, f"{many} {here}, listed in {ms:.0f} ms{odd}", {"list_ms": ms})
    yield from catch_errors("layout", partial(_of_layout, store, prefix))
    manifests = [info.key for info in infos if info.key.endswith(f".{Suffix.MANIFEST.value}")]
    if not manifests:
        yield Check("read", Verdict.SKIPPED, "none of these objects is a manifest")
    else:
        yield from catch_errors("read", lambda: _of_reading(store, manifests))
    yield from catch_errors("clock", lambda: _of_clock(store))
    yield from catch_errors("rules", lambda: _of_rules(store, prefix, settings.upload_max_age_ms))
    if write:
        yield from catch_errors("write", lambda: _of_writing(store, f"{prefix}!tieredstore/doctor/{uuid4()}"))
    else:
        yield Check("write", Verdict.SKIPPED, "not tried: pass --write")


def _of_layout(store: ObjectStore, prefix: str) -> Iterator[Check]:
    other = other_layout(store, prefix)
    if other is not None:
        sentence = (
            f"objects here were written with {other}; the settings do not have this, so readers do not find the objects"
        )
        yield Check("layout", Verdict.BAD, sentence, exit_code=2)


def _of_reading(store: ObjectStore, manifests: Sequence[str]) -> Iterator[Check]:
    # Limit the size, because an object that is named like a manifest may be large.
    times = [_measure_ms(lambda: store.get_small(manifests[0], MAX_MANIFEST_SIZE)) for _ in range(_TRIES)]
    plural = "s" if len(manifests) > 1 else ""
    yield Check(
        "read",
        Verdict.GOOD,
        f"1 of {len(manifests)} manifest{plural} read in {statistics.median(times):.0f} ms; no segment was checked "
        "(tieredstore verify does)",
        {"get_ms": statistics.median(times)},
    )


def _of_clock(store: ObjectStore) -> Iterator[Check]:
    before_ms = time.time() * 1000
    theirs_ms = admin_of(store).now_ms()
    after_ms = time.time() * 1000
    if theirs_ms is None:
        yield Check("clock", Verdict.WARN, "the store does not report its time, so gc cannot tell the age of objects")
        return
    # The store's time has whole seconds, and the store may read its clock at any moment between request and answer. Do
    # not count these differences.
    skew_ms = max(theirs_ms - after_ms, before_ms - theirs_ms - 1000, 0.0)
    figures = {"skew_ms": skew_ms}
    if skew_ms <= _SKEW_MS:
        yield Check("clock", Verdict.GOOD, "this machine's clock and the store's agree", figures)
        return
    outcome = Verdict.BAD if skew_ms >= _REFUSED_SKEW_MS else Verdict.WARN
    yield Check(
        "clock", outcome,
        f"this machine's clock and the store's differ by {skew_ms / 1000:.0f} s: S3 refuses 15 minutes or more",
        figures, exit_code=6 if outcome is Verdict.BAD else 0,
    )  # fmt: skip


def _of_rules(store: ObjectStore, prefix: str, upload_max_age_ms: int) -> Iterator[Check]:
    rules = admin_of(store).rules_on(prefix)
    if rules is None:
        yield Check(
            "rules",
            Verdict.SKIPPED,
            "the store cannot list its lifecycle rules: check that none deletes segments",
        )
    elif rules:
        for rule in rules:
            yield Check("rules", Verdict.BAD, f"{rule}: exclude segments from the rule", exit_code=6)
    else:
        yield Check("rules", Verdict.GOOD, "no lifecycle rule deletes segments")
    yield from _of_unfinished(store, prefix, upload_max_age_ms)
    for kept in admin_of(store).kept_after_delete():
        yield Check("rules", Verdict.WARN, kept)
    versions = admin_of(store).versions()
    if isinstance(versions, BucketVersions):
        yield _of_undeleting(versions)


def _of_undeleting(versions: BucketVersions) -> Check:
    obstacle = versions.obstacle()
    if obstacle is not None:
        return Check("undelete", Verdict.WARN, f"a topic deleted by mistake could not be brought back: {obstacle}")
    return Check(
        "undelete", Verdict.GOOD, "restore undelete can bring back a topic that was deleted by mistake, as long as the "
        "bucket keeps its versions; --write tries it",
    )  # fmt: skip


def _of_undeleted(store: ObjectStore, key: str) -> Iterator[Check]:
    """Test that a deleted object can be brought back, if the store can list versions of objects."""
    versions = admin_of(store).versions()
    if isinstance(versions, str) or versions.obstacle() is not None:
        return
    try:
        for marker in [one for one in versions.list(key) if one.is_marker]:
            versions.remove_marker(marker)
        store.head(key)
    except (AccessDeniedError, ObjectNotFoundError) as error:
        yield Check("undelete", Verdict.WARN, f"a deleted object could not be brought back: {error}")
    else:
        yield Check("undelete", Verdict.GOOD, "a deleted object was brought back")


def _of_unfinished(store: ObjectStore, prefix: str, upload_max_age_ms: int) -> Iterator[Check]:
    """Check that unfinished uploads are aborted eventually, but not running ones. Yield nothing for stores that abort
    uploads by themselves."""
    lifecycle = admin_of(store).lifecycle()
    if isinstance(lifecycle, str) or lifecycle.note:
        return
    try:
        state = lifecycle.read()
    except (StoreError, ObjectNotFoundError) as error:
        if error.retryable:
            raise
        yield Check("rules", Verdict.SKIPPED, f"the lifecycle rules could not be read: {error}")
        return
    for each in state.rules:
        under = ", ".join(each.prefixes) or "everything"
        shown = f"{each.action}, under {under}{'; of some objects only' if each.is_limited else ''}"
        is_off = "" if each.is_enabled else " (disabled)"
        yield Check("rules", Verdict.GOOD, f"the bucket has the rule {each.name}{is_off}: {shown}")
    rule = aborting_rule(state, prefix)
    if rule is None:
        sentence = (
            "no lifecycle rule aborts unfinished uploads, which cost money but are in no listing: run "
            "tieredstore doctor --fix"
        )
        yield Check("rules", Verdict.WARN, sentence)
        return
    sentence = f"the rule {rule.name} aborts unfinished uploads after {rule.aborts_after_days} days"
    if (rule.aborts_after_days or 0) >= (least := least_days(upload_max_age_ms)):
        yield Check("rules", Verdict.GOOD, sentence)
    else:
        hours = f"{upload_max_age_ms / 3_600_000:g} h (upload.max.age.ms)"
        yield Check("rules", Verdict.WARN, f"{sentence}, but copies may take {hours}: raise the rule to {least} days")


def _of_writing(store: ObjectStore, place: str) -> Iterator[Check]:
    body = os.urandom(_PROBE_BYTES)
    try:
        put_ms = statistics.median(_measure_ms(partial(store.put, f"{place}/{n}", body)) for n in range(_TRIES))
        if store.get(f"{place}/0") != body:
            yield Check("write", Verdict.BAD, "the store returned other bytes than were written", exit_code=4)
            return
        yield Check(
            "write", Verdict.GOOD, f"{human_bytes(_PROBE_BYTES)} written in {put_ms:.0f} ms", {"put_ms": put_ms}
        )
        yield from _of_conditions(store, place)
        store.delete([f"{place}/0"])
        try:
            store.head(f"{place}/0")
        except ObjectNotFoundError:
            yield Check("delete", Verdict.GOOD, "a deleted object is gone")
            yield from _of_undeleted(store, f"{place}/0")
        else:
            yield Check("delete", Verdict.BAD, "a deleted object is still there", exit_code=6)
    finally:
        store.delete([info.key for info in store.list(f"{place}/")])


def _of_conditions(store: ObjectStore, place: str) -> Iterator[Check]:
    faults = list(check_conditional_writes(store, place))
    if not faults:
        yield Check("conditions", Verdict.GOOD, "conditional writes work: of concurrent writers, one succeeds")
    elif not store.conditional_writes:
        yield Check("conditions", Verdict.WARN, f"the store declares no conditional writes: {faults[0]}")
    for fault in faults if store.conditional_writes else ():
        yield Check(
            "conditions", Verdict.BAD, f"{fault}: processes with this bucket may undo each other's changes", exit_code=6
        )


def _measure_ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return _ms_since(started)


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
