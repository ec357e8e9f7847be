"""A bucket of segments, and its methods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Unpack, cast

from tieredstore.api.outcomes import OnOutcome, Plan, Totals, run
from tieredstore.api.rows import KeyUse, Segment, Table, Topic, Usage, segment_of, tell_each
from tieredstore.api.scopes import Scopes, Which, check_keywords, check_names, scopes_of
from tieredstore.errors import ConfigError, redact
from tieredstore.installation import Extra
from tieredstore.model import AtTime, TopicIdPartition, Uuid
from tieredstore.process.closing import Closer, Closing
from tieredstore.process.forks import PerProcess
from tieredstore.process.lifetime import Lifetime
from tieredstore.process.parallel import READERS
from tieredstore.query.arguments import Partitions, TopicIdLike, path_of, topic_id_of, wrong_kind
from tieredstore.query.positions import GivenPlace, duration_of, place_of, time_of, window_of
from tieredstore.remote.stores import NamedStore, url_of

if TYPE_CHECKING:
    from tieredstore.api.copying import DiskSegments
    from tieredstore.api.exporting import OnFile
    from tieredstore.api.reading import QueryOptions, ReadOptions
    from tieredstore.api.reads import Read
    from tieredstore.api.verifying import Finding, Level, Verification
    from tieredstore.config import Settings
    from tieredstore.ops.bucket import Bucket as OpenBucket
    from tieredstore.ops.cost.prices import PriceFile
    from tieredstore.ops.doctor.checkup import Check, OnCheck
    from tieredstore.ops.garbage.holds import LegalHold
    from tieredstore.ops.keys.use import KeyNeed
    from tieredstore.ops.listing import ListedSegment
    from tieredstore.remote import RemoteStorageManager
    from tieredstore.remote.stores import StoreLike

By = Literal["topic", "partition", "day"]

OnSegment = Callable[[Segment], object] | None
"""A function that is called with each segment as it is read."""

CLOSE_S: Final = 2.0
"""The maximum time, in seconds, that closing a bucket takes."""


class _Opened:
    """The store that one process has opened. The ``RemoteStorageManager`` is created when the process first reads,
    copies or decrypts a segment."""

    def __init__(self, settings: Settings) -> None:
        from tieredstore.ops.bucket import Bucket as OpenBucket  # noqa: PLC0415  only an opened store needs it
        from tieredstore.places.opening import open_places  # noqa: PLC0415

        self.bucket = OpenBucket(settings, open_places(settings))
        self.managers: PerProcess[RemoteStorageManager] = PerProcess(self.bucket.manager, lambda one: one.close())

    def close(self) -> None:
        self.managers.close()
        self.bucket.store.close()


class Bucket(Closing):
    """The segments under one prefix of a store. Create a bucket with :func:`tieredstore.open`.

    A bucket is thread-safe and can be pickled. A forked child, or a process that unpickles the bucket, opens its own
    store. Close the bucket, or use it as a context manager: after closing, every call raises AlreadyClosedError.

    Example::

        with tieredstore.open("store.properties") as bucket:
            for topic in bucket.topics("orders*"):
                print(topic.name, topic.segments, topic.stored_size)
    """

    def __init__(
        self, settings: Settings, broker: Mapping[str, str] | None = None, named: NamedStore | None = None
    ) -> None:
        self.settings = settings
        self.broker = broker
        self.named = named
        """The source of the settings. Other processes can read the same settings from it."""
        self._life = Lifetime("the bucket")
        self._handles: PerProcess[_Opened] = PerProcess(partial(_Opened, settings), _Opened.close)
        self._closer = Closer(self._life.end, self._handles.close)

    # ---- reading

    def topics(
        self,
        *topics: str,
        start: GivenPlace = None,
        stop: GivenPlace = None,
        until: GivenPlace = None,
        on_segment: OnSegment = None,
        **which: Unpack[Which],
    ) -> Table[Topic]:
        """Return the topics with their partitions and sums over complete segments.

        ``topics`` are names or globs; without any, all topics are returned. The call reads the manifest of each
        segment, and needs no private key. ``start`` and ``stop`` restrict the sums to segments with records in this
        range. ``on_segment`` is called with each segment, complete or not.

        If the bucket has a broker, the result includes the broker's offsets in this range. It also includes topics that
        the broker tiers (``remote.storage.enable``) but the bucket lacks. If the time ``until`` is given,
        ``missing_until`` lists the earlier offsets that the bucket lacks, and ``why_missing`` the reasons.

        Raises ResourceNotFoundError for a name that does not exist.
        """
        from tieredstore.api.topics import TopicSums  # noqa: PLC0415

        scopes, window = scopes_of(self.topics, topics, which), window_of(start, stop)
        moment = time_of("until", until)
        if moment is not None and (self.broker is None or window != (None, None)):
            raise ConfigError(
                "until needs a broker to compare with: open the bucket with broker=, and leave out start and stop"
            )
        latest: dict[TopicIdPartition, ListedSegment] = {}
        listed = tell_each(self._list_segments(scopes, *window, latest=latest), self._teller(on_segment))
        return TopicSums(self, scopes, window, moment).of(listed, latest)

    def each_segment(
        self, *topics: str, start: GivenPlace = None, stop: GivenPlace = None, **which: Unpack[Which]
    ) -> Iterator[Segment]:
        """Yield the segments of several topics one by one, without keeping segments or manifests in memory."""
        scopes, (first, last) = scopes_of(self.each_segment, topics, which), window_of(start, stop)
        return (segment_of(one, self) for one in self._list_segments(scopes, first, last))

    def segments(
        self,
        topic: str,
        partitions: Partitions = None,
        *,
        start: GivenPlace = None,
        stop: GivenPlace = None,
        topic_id: TopicIdLike = None,
    ) -> Table[Segment]:
        """Return all segments of a topic, even incomplete and damaged segments, sorted by partition and offset.

        ``start`` and ``stop`` select the segments that have records at ``start`` or later and before ``stop``. The call
        reads the segments' manifests, and needs no private key.
        """
        scopes, (first, last) = Scopes((topic,), partitions, topic_id), window_of(start, stop)
        return Table(segment_of(one, self) for one in self._list_segments(scopes, first, last))

    def read(
        self,
        topic: str,
        partitions: Partitions = None,
        *,
        start: GivenPlace = None,
        stop: GivenPlace = None,
        last: int | None = None,
        **how: Unpack[ReadOptions],
    ) -> Read:
        """Return the records of a topic as one log: the bucket's records and, if the bucket has a broker, the broker's
        newer records.

        Reading begins at ``start`` and ends before ``stop``; both can be an offset or a time. ``last`` instead returns
        the last records of each partition. ``follow=True`` also returns new records, and never ends. Records of aborted
        and open transactions are left out.

        Raises DataLossError, before the first record, for offsets that were written but no longer exist anywhere.
        """
        with Extra("reading records", "arrow"):
            from tieredstore.api.reading import read_records  # noqa: PLC0415

        self._life.check()
        check_names([topic])
        return read_records(self, topic, partitions, start=start, stop=stop, last=last, how=how)

    def query(
        self,
        sql: str,
        *,
        sandbox: bool = False,
        topic_ids: Mapping[str, TopicIdLike] | None = None,
        **how: Unpack[QueryOptions],
    ) -> Read:
        """Return the rows of a query in DuckDB's SQL; each topic is a table, with keys and values as text.

        If a topic was deleted and re-created, ``topic_ids`` select one of the topics with its name. The SQL may read
        and write local files, and install extensions. With ``sandbox`` it can only read the topics that it names.
        """
        with Extra("SQL", "query"):
            from tieredstore.api.reading import query_rows  # noqa: PLC0415

        self._life.check()
        return query_rows(self, sql, how, sandbox=sandbox, topic_ids=topic_ids)

    def export(
        self,
        topic: str,
        folder: str | Path,
        partitions: Partitions = None,
        *,
        start: GivenPlace = None,
        stop: GivenPlace = None,
        last: int | None = None,
        file_format: str = "parquet",
        on_file: OnFile | None = None,
        **how: Unpack[ReadOptions],
    ) -> int:
        """Write a topic's records to files in a folder, by partition, and return the number of new records.

        A file is named after the offsets that it covers, and is complete or absent. Call the method again to complete
        an interrupted export, or to add the records of a topic that has grown. ``on_file`` is called with each finished
        file.
        """
        with Extra("reading records", "arrow"):
            from tieredstore.api.exporting import export_records  # noqa: PLC0415

        self._life.check()
        check_names([topic])
        return export_records(
            self, topic, path_of("folder", folder), partitions, (start, stop, last),
            file_format=file_format, on_file=on_file, how=how,
        )  # fmt: skip

    def inspect(self, topic: str, partition: int, segment: int | Uuid, *, topic_id: TopicIdLike = None) -> Segment:
        """Return the segment with this base offset or id. The call takes one listing of the partition, and one request.

        If several segments match an offset, a complete segment is preferred to a segment that lost an object. Raises
        SegmentNotFoundError, which names the nearest segments. Raises ConfigError with all matches if several are left,
        and CorruptDataError for a damaged manifest.
        """
        from tieredstore.ops.addresses import SegmentAddress, find_segment  # noqa: PLC0415
        from tieredstore.ops.listing import ListedSegment  # noqa: PLC0415

        check_names([topic])
        address = SegmentAddress(topic, partition, segment, topic_id_of(topic_id))
        opened = self.opened()
        stored = find_segment(opened.store, opened.prefix, address, opened.manifest_rules)
        return segment_of(ListedSegment(stored.objects, stored), self, whole=True)

    def usage(
        self,
        *topics: str,
        by: By = "topic",
        start: GivenPlace = None,
        stop: GivenPlace = None,
        prices: str | Path | PriceFile | None = None,
        listing: bool = False,
        on_segment: OnSegment = None,
        **which: Unpack[Which],
    ) -> Table[Usage]:
        """Return the bytes, segments and objects in the bucket, by topic, partition or day of the newest record.

        ``prices`` adds the cost per month; it is a price file like ``examples/prices.toml``. ``listing`` reads no
        manifests: that is fast, but the size before compression stays unknown. ``start`` and ``stop`` restrict the sums
        to segments with records in this range. ``on_segment`` is called with each segment.
        """
        from tieredstore.api.usage import add_up, prices_of  # noqa: PLC0415
        from tieredstore.ops.cost.usage import UsageBy  # noqa: PLC0415

        if by not in ("topic", "partition", "day"):
            raise ConfigError(f"by is {by!r:.60}; it must be topic, partition or day")
        needing = [name for name, given in (("prices", prices), ("start", start), ("stop", stop)) if given is not None]
        if listing and (needing or by == "day"):
            what = needing[0] if needing else "by='day'"
            raise ConfigError(f"{what} needs the manifests: leave listing out")
        known = prices_of(UsageBy(by), prices)
        listed = self._list_segments(
            scopes_of(self.usage, topics, which), *window_of(start, stop), manifests=not listing,
            ordered=False, parallel=which.get("parallel", READERS),
        )  # fmt: skip
        return add_up(tell_each(listed, self._teller(on_segment)), UsageBy(by), known, self.settings)

    def keys(
        self,
        key_id: str | None = None,
        *,
        on_segment: OnSegment = None,
        on_need: Callable[[KeyNeed], object] | None = None,
    ) -> Table[KeyUse]:
        """Return what each key pair encrypts, quarantined segments included.

        With ``key_id``, return only the uses of that pair. The result is empty if the pair encrypts nothing.
        ``on_segment`` is called with each segment examined.

        ``on_need`` is called for everything that needs or may need the pair ``key_id``. This includes readers that may
        still cache manifests from before a rotation. The returned rows do not include such readers.
        """
        from tieredstore.api.key_pairs import count_uses  # noqa: PLC0415

        return count_uses(self.opened(), key_id, self._teller(on_segment), on_need or _ignore)

    def verify(
        self,
        *topics: str,
        level: Level = "listing",
        sample: float = 1.0,
        start: GivenPlace = None,
        stop: GivenPlace = None,
        state: str | Path | None = None,
        recheck_after: timedelta | str = "30d",
        on_finding: Callable[[Finding], object] | None = None,
        on_segment: Callable[[Verification], object] | None = None,
        **which: Unpack[Which],
    ) -> Verification:
        """Check the segments, and look for missing offsets between them. The call changes nothing.

        ``level`` sets how much is checked; the levels index and data need the private keys. ``sample`` is the share of
        segments to examine at these levels. ``start`` and ``stop`` restrict the check to segments that may have records
        in this range. The file ``state`` records which segments were sound; such segments are not checked again within
        ``recheck_after``. If the bucket has a broker, the bucket is compared with the broker's metadata topic in both
        directions.

        ``on_finding`` receives each finding at once; findings are then not kept. ``on_segment`` is called with the sums
        so far. Raises ResourceNotFoundError if there is nothing to verify.
        """
        from tieredstore.api.verifying import Depth, verify_segments  # noqa: PLC0415

        scopes, file = scopes_of(self.verify, topics, which), None if state is None else path_of("state", state)
        (first, last), recheck = window_of(start, stop), duration_of("recheck_after", recheck_after)
        depth = Depth(level, sample, first, last, file, recheck, which.get("parallel"))
        opened = self.opened()
        opened.refuse_raw("verify", "this layout has no manifests or indexes to compare")
        return verify_segments(opened, scopes, depth, client=self.broker, on_finding=on_finding, on_segment=on_segment)

    def doctor(self, *, write: bool = False, release: str | None = None, on_check: OnCheck = None) -> Table[Check]:
        """Check settings, keys, store, clock, rules and caches. ``write`` also puts and deletes a few small objects.

        With ``release``, the call instead checks which objects an earlier release of tieredstore could not read.
        ``on_check`` is called with each result.
        """
        from tieredstore.ops.doctor.checkup import run_checks  # noqa: PLC0415

        self._life.check()
        if not isinstance(cast("object", release), str | None):
            raise wrong_kind("release", release, "a text such as '0.1'")
        checks = run_checks(self.settings, self.named, write=write, release=release)
        return Table(tell_each(checks, on_check or _ignore))

    # ---- copying

    def upload(
        self,
        log_dir: str | Path,
        *topics: str,
        broker_id: int | None = None,
        dry_run: bool = False,
        on_outcome: OnOutcome = None,
        on_found: Callable[[DiskSegments], object] | None = None,
        on_progress: Callable[[int], object] | None = None,
        **which: Unpack[Which],
    ) -> Totals:
        """Copy the closed segments of a broker's disk into the bucket. Segments already stored are skipped, so call
        this repeatedly.

        ``log_dir`` is a log directory, a partition's folder or one ``.log`` file; ``topics`` selects topics by name or
        glob. ``topic_id`` and ``broker_id`` replace the ids in ``partition.metadata`` and ``meta.properties``.
        ``on_found`` is called with the segments on disk, before any request. ``on_progress`` is called, on any thread,
        with the number of log bytes that were just sent.

        A segment counts as stored once its manifest exists. So if the process is killed, the next call uploads the
        rest. A failure does not stop the other segments; the call then raises PartlyDoneError at its end.
        """
        from tieredstore.api.copying import find_segments, upload_segments  # noqa: PLC0415

        check_keywords(self.upload, which, Which)
        segments = find_segments(path_of("log_dir", log_dir), topics, which.get("partitions"), which.get("topic_id"))
        if on_found is not None:
            on_found(segments)
        outcomes = upload_segments(
            self, segments, broker_id=broker_id, dry_run=dry_run, parallel=which.get("parallel", 1),
            on_progress=on_progress or int,
        )  # fmt: skip
        with contextlib.closing(outcomes):
            return run(outcomes, on_outcome)

    def mirror(
        self,
        target: StoreLike,
        *topics: str,
        decrypt: bool = False,
        new_data_keys: bool = False,
        read_back: bool = True,
        dry_run: bool = False,
        on_outcome: OnOutcome = None,
        **which: Unpack[Which],
    ) -> Totals:
        """Copy segments to another bucket under the same ids. Segments that already exist there are not sent again.

        If ``target`` is a URL or a folder, this bucket's settings apply to it. If the target has another chunk size,
        compression or encryption, segments are rewritten under new ids. ``decrypt`` permits plain copies of encrypted
        segments. ``new_data_keys`` rewrites every encrypted segment with a new data key: use it if an attacker may know
        the data keys. With ``read_back`` each object is read back and compared before its manifest is written.
        """
        from tieredstore.api.copying import copy_segments  # noqa: PLC0415

        copied = copy_segments(
            self, target, scopes_of(self.mirror, topics, which), decrypt=decrypt, new_data_keys=new_data_keys,
            read_back=read_back, dry_run=dry_run, parallel=which.get("parallel"),
        )  # fmt: skip
        with contextlib.closing(copied):
            return run(copied, on_outcome)

    # ---- deleting and rewriting: each method returns a plan

    def remove(
        self,
        *topics: str,
        stop: GivenPlace = None,
        segment: int | Uuid | None = None,
        force: bool = False,
        **which: Unpack[Which],
    ) -> Plan:
        """Return a plan to delete the segments of topics.

        With ``stop``, the plan includes only complete segments before that offset or time. An offset needs one topic
        and its ``partitions``. Like Kafka's retention, the plan deletes the oldest segments up to the first one to
        keep. ``segment`` selects a single segment, by base offset or id. With an id, the plan includes the remains of
        an unfinished copy or deletion.

        Segments under a legal hold, or written after the plan was made, are kept. If the bucket has a broker, segments
        that the broker lists or may still list are also kept; ``force`` deletes them.
        """
        from tieredstore.api.removing import check_arguments, plan_removal  # noqa: PLC0415

        scopes, place = scopes_of(self.remove, topics, which), place_of("stop", stop)
        check_arguments(scopes, place, segment)
        if force and self.broker is None:
            raise ConfigError("force applies only to partitions that a broker lists: open the bucket with broker=")
        return plan_removal(self, scopes, place, segment, force=force, parallel=which.get("parallel", READERS))

    def gc(
        self,
        *topics: str,
        min_age: timedelta | str = "24h",
        unknown_too: bool = False,
        **which: Unpack[Which],
    ) -> Plan:
        """Return a plan to delete objects older than ``min_age`` (``24h``, ``7d``) that broken copies and deletions
        left behind.

        If the bucket has a broker, the plan also deletes segments that the broker has deleted from its metadata.
        ``unknown_too`` adds segments that never were in the broker's metadata.
        """
        from tieredstore.api.removing import plan_gc  # noqa: PLC0415

        scopes, least = scopes_of(self.gc, topics, which), duration_of("min_age", min_age)
        if unknown_too and self.broker is None:
            raise ConfigError("unknown_too adds segments that a broker never listed: open the bucket with broker=")
        self.opened().refuse_raw(
            "gc", "a log without its index looks like an unfinished copy, but may be the only copy"
        )
        return plan_gc(self, scopes, least, unknown_too=unknown_too, parallel=which.get("parallel", READERS))

    def repair(self, target: StoreLike, *topics: str, **which: Unpack[Which]) -> Plan:
        """Return a plan to replace damaged objects in ``target`` by the objects with the same keys in this bucket.

        Both copies of each segment are verified first. A segment without damage in the target stays unchanged.
        """
        from tieredstore.api.copying import plan_repair  # noqa: PLC0415

        scopes = scopes_of(self.repair, topics, which)
        return plan_repair(self, target, scopes, parallel=which.get("parallel"))

    def rotate_keys(self, *topics: str, **which: Unpack[Which]) -> Plan:
        """Return a plan to encrypt the data key of each segment, even quarantined segments, with the active key pair.

        Rotation leaves data and indexes unchanged. Raises ConfigError if no encryption is configured.
        """
        from tieredstore.api.key_pairs import rotate_segments  # noqa: PLC0415

        scopes = scopes_of(self.rotate_keys, topics, which)
        return Plan("rotate_keys", str(scopes), rotate_segments(self, scopes, which.get("parallel", READERS)))

    def abort_rule(self, *, min_age: timedelta | str = "7d") -> Plan:
        """Return a plan to make the store abort multipart uploads that are unfinished after ``min_age`` (whole days).

        The plan adds one lifecycle rule to the store and leaves other rules unchanged. If a rule already does this, the
        plan is empty.
        """
        from tieredstore.api.removing import plan_abort_rule  # noqa: PLC0415

        return plan_abort_rule(self, duration_of("min_age", min_age))

    # ---- legal holds

    def holds(self) -> Table[LegalHold]:
        """Return the legal holds. Raises CorruptDataError for an unreadable hold: it may protect everything."""
        from tieredstore.ops.garbage.holds import list_holds  # noqa: PLC0415

        opened = self.opened()
        return Table(list_holds(opened.store, opened.prefix))

    def place_hold(
        self,
        name: str,
        *topics: str,
        partitions: Partitions = None,
        start: GivenPlace = None,
        stop: GivenPlace = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> LegalHold:
        """Protect segments from deletion from now on: all segments, the segments of a topic or a partition, or a range
        of offsets.

        A hold covers at most one topic and one of its partitions. If ``start`` is a time, name both a topic and a
        partition. The hold then begins with the first segment that has a record at that time or later. ``stop`` is an
        exclusive offset. It cannot be a time: manifests lack the time of a segment's first record, so the hold might
        end too early.

        Returns the stored hold, or with ``dry_run`` the hold that would be stored. Raises PreconditionFailedError if
        the name is taken.
        """
        from tieredstore.api.holding import place  # noqa: PLC0415

        return place(self, name, Scopes(topics, partitions), (start, stop), reason, dry_run=dry_run)

    def release_hold(self, name: str) -> Plan:
        """Return a plan to release a hold. The release permits deletion again. Raises ObjectNotFoundError if there is
        no such hold.

        If a new hold with the same name has replaced the hold since the plan was made, the new hold is kept.
        """
        from tieredstore.api.holding import plan_release  # noqa: PLC0415

        return plan_release(self, name)

    # ---- the bucket itself

    @property
    def url(self) -> str:
        """The bucket's URL, without credentials."""
        return url_of(self.settings)

    @property
    def manager(self) -> RemoteStorageManager:
        """Kafka's RemoteStorageManager over this bucket. The manager reads the key files on first use, and is closed
        with the bucket."""
        self._life.check()
        return self._handles.get().managers.get()

    def opened(self) -> OpenBucket:
        """Return the open store with its settings, for tools."""
        self._life.check()
        return self._handles.get().bucket

    def close(self) -> None:
        """Close the store and everything opened by the bucket, within two seconds. Idempotent."""
        self._closer.close(CLOSE_S)

    def _teller(self, on_segment: OnSegment) -> Callable[[ListedSegment], object]:
        return _ignore if on_segment is None else lambda one: on_segment(segment_of(one, self))

    def _list_segments(
        self,
        scopes: Scopes,
        start: int | AtTime | None = None,
        stop: int | AtTime | None = None,
        *,
        manifests: bool = True,
        ordered: bool = True,
        parallel: int = READERS,
        latest: dict[TopicIdPartition, ListedSegment] | None = None,
    ) -> Iterator[ListedSegment]:
        """Yield the segments of each partition by offset. ``ordered`` also sorts the partitions, and keeps the listing
        in memory. ``latest`` receives each partition's last segment, even if that segment is outside the window.
        """
        from tieredstore.catalog.listing import list_segments  # noqa: PLC0415
        from tieredstore.ops.listing import ListedSegment, load_listing, load_stream, within  # noqa: PLC0415

        opened, load = self.opened(), load_listing if ordered else load_stream

        def load_all() -> Iterator[ListedSegment]:
            for scope in scopes.of(opened.store, opened.prefix):
                listed = list_segments(opened.store, opened.prefix, scope)
                if manifests:
                    yield from load(opened.store, listed, rules=opened.manifest_rules, parallel=parallel)
                else:
                    yield from (ListedSegment(objects, None) for objects in listed)

        loaded = (
            load_all() if latest is None else tell_each(load_all(), lambda one: latest.update({one.partition: one}))
        )
        # The method ``topics`` (it alone passes ``latest``) allows a start beyond the end if there is a broker.
        yield from within(loaded, start, stop, check_start=latest is None or self.broker is None)

    def __repr__(self) -> str:
        encryption = self.settings.encryption
        key = "" if encryption is None else f", key={encryption.key_pair_id!r}"
        broker = "" if self.broker is None else f", broker={redact(self.broker['bootstrap.servers'])!r}"
        return f"Bucket({self.url!r}{key}{broker})"

    def __reduce__(self) -> tuple[type[Bucket], tuple[object, ...]]:
        return Bucket, (self.settings, self.broker, self.named)


def _ignore(_: object) -> None:
    """Do nothing."""
