"""The driver of a pipeline: it recovers after a crash, commits files and publishes them. It needs neither Spark nor
threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from tieredstore.errors import ConfigError, FencedError, InvalidValueError, PreconditionFailedError, PreparedGoneError
from tieredstore.pipelines.log.commit_log import Life, LogState
from tieredstore.pipelines.log.entries import BatchWindow, Entry, EntryKind, OutputFile, WrittenWindow
from tieredstore.pipelines.log.holdings import Committed
from tieredstore.pipelines.run.finalizing import Finalizer, Finished
from tieredstore.pipelines.run.generation import Generation
from tieredstore.pipelines.run.window_writing import Written, discard_files
from tieredstore.process.stopping import nothing_under_way

if TYPE_CHECKING:
    from tieredstore.pipelines.run.redrive import Aside

_logger: Final = logging.getLogger(__name__)

_SHOWN: Final = 10
_BEGINS: Final = 5


class WindowWriter(Protocol):
    """Writer that writes the files of committed offset windows again, if the store drops prepared files (uploaded, not
    yet visible) before publication.
    """

    def write(self, window: BatchWindow, generation: Generation) -> Written:
        """Prepare (upload, but not yet publish) the files of an offset window under the file names of
        ``generation``."""
        ...

    def write_quarantined(self, window: BatchWindow, key: str, generation: Generation) -> Written:
        """Prepare (upload, but not yet publish) the files of an offset window whose messages are in the quarantine file
        ``key``."""
        ...


Listener = Callable[["Entry | None", "LogState"], None]
"""Function that the driver calls with each entry after its publication, and with None after ``begin`` or ``resume`` has
published the last entry.
"""


class Driver:
    """Driver that commits the files that tasks have prepared, then publishes them. Not thread-safe.

    A record counts as written only if the log has committed the record's file. At most the last entry of the log is not
    fully published. The next driver that starts publishes this entry before it commits another entry.

    | state of the driver | meaning | what ends it, with the next state |
    |---|---|---|
    | new | its log is unread | ``begin``: complete |
    | complete | everything committed is published | ``commit``, ``redrive``, ``finalize``: committed, then complete |
    | committed | after a failure the last entry may not be fully published | ``resume``: complete |
    | fenced | another driver has written an entry | none: each method raises FencedError |

    | state of a window | meaning | what ends it, with the next state |
    |---|---|---|
    | prepared | uploaded by a task, not visible | ``commit``: committed; FencedError, InvalidValueError: discarded |
    | committed | the log names its files | published; files that the store dropped are rewritten first |
    | published | its files are visible | nothing here; a backfill may replace them |
    """

    def __init__(self, generation: Generation, writer: WindowWriter, after: Listener | None = None) -> None:
        self.generation, self._writer, self._after = generation, writer, after
        self.store, self.log = generation.store, generation.log
        self.finalizer: Finalizer = Finalizer(generation)
        self.is_complete = False
        """True if all committed files are published. False after a failure, until ``resume`` has published them."""

    def of_generation(self, number: int) -> Driver:
        """Return a driver of the generation ``number`` of the output, without a listener. The caller must call its
        ``begin``."""
        return Driver(self.generation.with_number(number), self._writer)

    def begin(self, topics: Sequence[str], starts: Sequence[BatchWindow] = ()) -> None:
        """Take over the pipeline: read the log, append a ``begin`` entry, and publish the committed files.

        The entry records ``starts``, the first offsets of partitions that have no commits yet. Otherwise a later run
        would begin at the first offset that exists by then, and would not notice that earlier records were lost.

        Raises ConfigError if the generation belongs to another pipeline, has ended, or has files but no log. It also
        raises ConfigError if a new output's key prefix does not end with a slash.
        """
        generation, state = self.generation, self.log.read()
        generation.refuse_ended()
        generation.check_root()
        generation.claim()
        if state.number < 0:
            generation.refuse_strangers(topics)
        if generation.table is not None:
            # Check the Iceberg catalog before the append. Otherwise, while the catalog is unavailable, each retry would
            # append an entry to the log.
            with nothing_under_way():
                generation.table.check()
        self._append_begin(starts)
        self._finish_last()

    def _append_begin(self, starts: Sequence[BatchWindow]) -> None:
        """Append a ``begin`` entry. If an earlier driver, which is ending, appends an entry first, try again after that
        entry."""
        for attempt in range(_BEGINS + 1):
            known = self.log.state.positions
            new = [one.without_records() for one in starts if one.where not in known]
            try:
                self.log.append("begin", self.generation.fingerprint, new)
            except FencedError:
                if attempt == _BEGINS:
                    raise
                self.log.read()
                self.generation.refuse_ended()
            else:
                return

    def resume(self) -> None:
        """Publish the committed files after an operation has failed, or after the response to a commit was lost.

        Raises FencedError if another driver has taken over.
        """
        self.log.catch_up()
        self._finish_last()

    def mark_published(self) -> None:
        """Record that all committed files are published, so that no later driver publishes them again.

        This does nothing after a failure, or if the log already records that everything is published. Only the last
        batch needs this log entry, because each commit of a batch shows that earlier batches are published.
        """
        state = self.log.state
        # Append no ``published`` entry during a backfill, because it would end the backfill. Only the backfill command
        # knows which offset windows are still unwritten.
        if self.is_complete and state.unpublished >= 0 and state.is_filled:
            self.log.append("published", self.generation.fingerprint)

    def commit(self, written: Sequence[Written]) -> Entry:
        """Commit prepared offset windows and publish them. Discard prepared files (uploaded, not yet visible) that are
        not committed.

        If the response to an earlier request was lost, this driver may already have committed an entry. This call then
        returns that entry.

        Raises InvalidValueError, and publishes nothing, if the batch has more bad messages than the settings allow.
        """
        self._judge(written)
        return self._commit("batch", [window for window, _ in written])

    def finalize(self, limits: Mapping[str, int]) -> list[Finished]:
        """Write ``_SUCCESS`` to each directory whose period is over, oldest first. ``limits`` has a time for each
        topic: a period that ends at or before this time is over.

        Does nothing while committed files are unpublished.
        """
        finished: list[Finished] = []
        while self.is_complete and (due := self.finalizer.find_due(limits)):
            self.is_complete = False
            entry = self.log.append("finalize", self.generation.fingerprint, directories=[one.path for one in due])
            self._complete(entry)
            # ``append`` may return an earlier entry of this driver, if the response to the earlier request was lost. So
            # count only directories that the returned entry names.
            finished += [one for one in due if not entry.windows and one.path in entry.directories]
        return finished

    def redrive(self, window: WrittenWindow, aside: Aside) -> Entry:
        """Commit and publish files with quarantined messages that were parsed again, and delete the quarantine file.

        The log entry names the generation that quarantined the messages, if it is another generation than this one.
        """
        other = -1 if aside.generation == self.generation.number else aside.generation
        return self._commit("redrive", [window], removed=[aside.file.key], other=other)

    def _commit(
        self, kind: EntryKind, windows: Sequence[WrittenWindow], *, removed: Sequence[str] = (), other: int = -1
    ) -> Entry:
        files = [file for window in windows for file in window.files]
        try:
            self.is_complete = False
            self.generation.refuse_ended()
            late = self.finalizer.find_late(windows)
            entry = self.log.append(
                kind, self.generation.fingerprint, windows, removed=removed, other=other, directories=late
            )
        except (ConfigError, FencedError):
            # These errors show that nothing was committed, so discard the files. After any other failure, the files
            # may be committed although the response was lost.
            discard_files(self.store, files)
            raise
        if entry.windows != tuple(windows):
            # ``append`` has returned an earlier entry that this driver had already committed. So these offset windows
            # were not committed, and their files are useless.
            discard_files(self.store, files)
        self._complete(entry)
        return entry

    def finalize_again(self, paths: Sequence[str]) -> None:
        """Write ``_SUCCESS`` again to directories that have lost it."""
        if paths:
            self.is_complete = False
            self._complete(self.log.append("finalize", self.generation.fingerprint, directories=paths))

    def _complete(self, entry: Entry) -> None:
        self._finish(entry)
        self._tell(entry)

    def _judge(self, written: Sequence[Written]) -> None:
        """Discard the files and raise InvalidValueError if there are more bad messages than the settings allow."""
        bad = [
            (window.topic, window.partition, offset, reason)
            for window, reasons in written
            for offset, reason in sorted(reasons.items())
        ]
        count = sum(window.quarantined for window, _ in written)
        most = self.generation.own.max_bad_messages
        if 0 <= most < count:
            discard_files(self.store, [file for window, _ in written for file in window.files])
            shown = "; ".join(f"{topic}-{number} at {offset}: {why}" for topic, number, offset, why in bad[:_SHOWN])
            raise InvalidValueError(
                f"{count} messages of a batch are bad, and secor.consumer.max_bad_messages is {most}, so the batch "
                f"is not written ({shown}); fix the parser's settings, or raise the limit"
            )

    def _publish_one(self, file: OutputFile) -> None:
        try:
            self.store.publish(file.prepared)
        except PreconditionFailedError as error:
            raise PreconditionFailedError(
                f"{file.key} is committed and cannot be published: another program has written an object of that name; "
                "move that object away and restart"
            ) from error

    def _finish_last(self) -> None:
        if (number := self.log.state.unpublished) >= 0:
            self._finish(self._without_replaced(self.log.entry(number)))
        self._tell(None)

    def _without_replaced(self, entry: Entry) -> Entry:
        """Leave out files that another generation has replaced since. They are deleted, and must never be written
        again."""
        gone = {key for later in self.log.entries(entry.number + 1) for key in later.removed}
        windows = (
            replace(window, files=tuple(file for file in window.files if file.key not in gone))
            for window in entry.windows
        )
        return replace(entry, windows=tuple(windows)) if gone else entry

    def _tell(self, entry: Entry | None) -> None:
        if self.generation.table is not None:
            self.generation.table.enter(self.log)
        self.is_complete = True
        if self._after is not None:
            self._after(entry, self.log.state)

    def _finish(self, entry: Entry) -> None:
        """Publish the files of an entry that this driver or an earlier driver committed. If the store has dropped some
        of the files since, write them again.
        """
        missing: list[OutputFile] = []
        self.log.check_alone()
        for file in entry.files:
            try:
                self._publish_one(file)
            except PreparedGoneError:
                missing.append(file)
        if missing:
            # A newer driver may have discarded the files.
            self._delete_late(entry)
            _logger.warning("%d committed files were dropped by the store before they were published", len(missing))
            discard_files(self.store, missing)  # the store may still hold parts of some of these files
            entry = self._write_again(entry, {file.key for file in missing})
        if entry.files:
            self._delete_late(entry)
        self.finalizer.write(entry)
        self.store.delete(entry.removed)

    def _delete_late(self, entry: Entry) -> None:
        """Raise FencedError if another driver is running. Before that, delete the files that this driver has published
        and that the other driver's entries have removed.

        If a store publishes by a copy, the copy may land after another process has published and deleted the file.
        """
        try:
            self.log.check_alone()
        except FencedError:
            # Read with a second object. If ``self.log`` applied the other driver's entries, it would no longer raise
            # FencedError.
            held = Committed.of(self.log.of_generation(self.generation.number)).files
            self.store.delete([file.key for file in entry.files if file.key not in held])
            raise

    def _write_again(self, entry: Entry, missing: set[str]) -> Entry:
        if entry.fingerprint != self.generation.fingerprint:
            raise ConfigError(
                f"the store dropped {min(missing)} before its publication, and the settings of parser or files have "
                "changed since its commit: run once with the earlier settings"
            )
        # Pair windows with quarantine files, because a ``redrive`` entry deletes one quarantine file per offset window,
        # in the same order.
        asides = dict(zip(entry.windows, entry.removed, strict=False))
        windows: list[WrittenWindow] = []
        renewed: list[OutputFile] = []
        for window in entry.windows:
            if missing.isdisjoint(file.key for file in window.files):
                windows.append(window)
                continue
            if (key := asides.get(window)) is None:
                again, _ = self._writer.write(window.window, self.generation)
            else:
                again, _ = self._writer.write_quarantined(window.window, key, self.generation)
            fresh = {file.key: file for file in again.files}
            if fresh.keys() != {file.key for file in window.files}:
                discard_files(self.store, again.files)
                raise ConfigError(
                    f"{window.window} now produce files that differ from the committed files: the records of the "
                    "topic have changed"
                )
            discard_files(self.store, [file for file in again.files if file.key not in missing])
            files = tuple(fresh[file.key] if file.key in missing else file for file in window.files)
            renewed += [file for file in files if file.key in missing]
            windows.append(replace(window, files=files))
        # Append an entry even if the new files have the same bytes. Otherwise, if this process died now, the log would
        # still name the uploads that the store has lost.
        again_entry = self.log.append(
            "rewrite", self.generation.fingerprint, windows, removed=entry.removed, directories=entry.directories
        )
        self.log.check_alone()
        try:
            for file in renewed:
                self._publish_one(file)
        except PreparedGoneError:
            self._delete_late(again_entry)  # a newer driver may have discarded the files
            raise
        return again_entry


def take_over(driver: Driver, number: int, topics: Sequence[str]) -> None:
    """Seal the generation ``number`` (a version of the output). The driver's new generation continues where ``number``
    ends.

    First publish the committed files of ``number``, and fence a driver that still runs that generation. If the process
    is killed, repeat the call; a complete take-over is not repeated. Raises ConfigError if ``number`` has no log or
    another generation has taken it over.
    """
    own = driver.generation
    state = own.log.read()
    if state.life is not Life.FREE:
        if state.other != number:
            raise ConfigError(
                f"generation {own.number} has begun without taking over generation {number}: leave out "
                "--take-over, or set another secor.generation"
            )
        return
    own.claim()
    own.refuse_strangers(topics)
    positions = _seal(driver, number, topics).positions
    windows = [
        BatchWindow(
            topic, one.topic_id, partition, one.next_offset, one.next_offset, one.leader_epoch
        ).without_records()
        for (topic, partition), one in sorted(positions.items())
    ]
    own.log.append("take-over", own.fingerprint, windows, other=number)


def _seal(driver: Driver, number: int, topics: Sequence[str]) -> LogState:
    """Seal the previous generation of the output if it is not yet sealed; return its final state."""
    before = driver.of_generation(number)
    log, own = before.generation.log, driver.generation

    def is_done(state: LogState) -> bool:
        return state.life is Life.SEALED and state.other == own.number

    state = log.read()
    if state.life is Life.FREE:
        raise ConfigError(f"generation {number} of {own.own.name} has no commit log: there is nothing to take over")
    if is_done(state):
        return state
    if state.life is Life.FILLING:
        raise ConfigError(f"generation {number} has an unfinished backfill: first complete it, by the same command")
    before.generation.refuse_ended()
    try:
        before.begin(topics)
        log.append("seal", before.generation.fingerprint, other=own.number)
    except (ConfigError, FencedError):
        # Another process may have completed the same take-over at the same time. If so, continue, because the log of
        # the new generation fences one of the two processes later.
        if not is_done(log.read()):
            raise
    return log.state
