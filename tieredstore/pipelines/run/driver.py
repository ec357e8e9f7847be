"""The driver's part of a pipeline: recovery, commit and publication. Needs neither Spark nor threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from tieredstore.errors import ConfigError, FencedError, InvalidValueError, PreconditionFailedError, PreparedGoneError
from tieredstore.pipelines.log.commit_log import Life, LogState
from tieredstore.pipelines.log.entries import Entry, OutputFile, Window, WrittenWindow
from tieredstore.pipelines.run.finalizing import Finalizer, Finished
from tieredstore.pipelines.run.generation import Generation
from tieredstore.pipelines.run.window_writing import Written, discard_files, mark_windows
from tieredstore.process.stopping import nothing_under_way

if TYPE_CHECKING:
    from tieredstore.pipelines.run.redrive import Aside

_logger: Final = logging.getLogger(__name__)

_SHOWN: Final = 10
_BEGINS: Final = 5


class WindowWriter(Protocol):
    """Writes windows of the log again after the store has dropped their prepared files."""

    def write(self, window: Window, generation: Generation) -> Written:
        """Prepare the files of a window, under the names of a generation."""
        ...

    def aside(self, window: Window, key: str, generation: Generation) -> Written:
        """Do the same for the bad messages in the file at this key."""
        ...


Listener = Callable[["Entry | None", "LogState"], None]
"""Called with each entry once it is carried out, or with None once ``begin`` or ``resume`` has finished the last
one.
"""


class Driver:
    """Commits what tasks have prepared, then publishes it. For one thread.

    The commit log is the only truth. At most the last batch is committed and not fully published: it is published
    before the next one is committed, by whichever driver starts first.

    | driver | means | what leads out of it |
    |---|---|---|
    | new | its log is unread | ``begin``: complete |
    | complete | everything committed is published | ``commit``, ``redrive``, ``finalize``: committed, then complete |
    | committed | after a failure the last entry may not be fully published | ``resume``: complete |
    | fenced | another driver has written an entry | none: each method raises FencedError |

    | window | means | what leads out of it |
    |---|---|---|
    | prepared | uploaded by a task, unlisted | ``commit``: committed; FencedError, InvalidValueError: discarded |
    | committed | the log names its files | published; files that the store dropped are rewritten first |
    | published | its files are listed | none here: ``upkeep`` replaces them |
    """

    def __init__(self, generation: Generation, writer: WindowWriter, after: Listener | None = None) -> None:
        self.generation, self._writer, self._after = generation, writer, after
        self.store, self.log = generation.store, generation.log
        self.finalizer: Finalizer = Finalizer(generation)
        self.is_complete = False
        """True if everything committed is published; after a failure ``resume`` makes it so."""

    def of_generation(self, number: int) -> Driver:
        """Return a driver of another generation, not begun and without a listener."""
        return Driver(self.generation.with_number(number), self._writer)

    def begin(self, topics: Sequence[str], starts: Sequence[Window] = ()) -> None:
        """Take over: read the log, append an entry, and finish what is committed.

        The entry marks where partitions without commits begin (``starts``): a loss before their first read then stays
        visible to later runs, which would otherwise begin after it.

        Raises ConfigError for a generation that belongs to another pipeline, has ended, or has files but no log, and
        for a root that would run into the topics' names.
        """
        generation, state = self.generation, self.log.read()
        generation.refuse_ended()
        generation.check_root()
        generation.claim()
        if state.number < 0:
            generation.refuse_strangers(topics)
        if generation.table is not None:
            # Check first: otherwise each retry while waiting for the catalog would append an entry.
            with nothing_under_way():
                generation.table.check()
        self._append_begin(starts)
        self._finish_last()

    def _append_begin(self, starts: Sequence[Window]) -> None:
        """Append the entry. Another driver that is ending may append one concurrently, so retry after it."""
        for attempt in range(_BEGINS + 1):
            known = self.log.state.positions
            new = [window for window, _ in mark_windows(starts) if window.where not in known]
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
        """Recover after an operation that failed or lost its response: publish what was committed.

        Raises FencedError if another driver has taken over.
        """
        self.log.catch_up()
        self._finish_last()

    def mark_published(self) -> None:
        """Record that everything committed was published, so that it is never published again.

        Nothing is written if the log already says so, or after a failure. A batch followed by another one needs no such
        mark.
        """
        state = self.log.state
        # The mark would also end a backfill, and only the same command knows what is left of an incomplete one.
        if self.is_complete and state.unpublished >= 0 and state.is_filled:
            self.log.append("published", self.generation.fingerprint)

    def commit(self, written: Sequence[Written]) -> Entry:
        """Commit prepared windows and publish them; discard prepared files that were not committed.

        Returns an earlier entry of this driver if its response had been lost and it stands after all.

        Raises InvalidValueError if more messages are bad than the settings allow; nothing of it appears then.
        """
        windows = [window for window, _ in written]
        files = [file for window in windows for file in window.files]
        try:
            self._judge(written)
            self.is_complete = False
            entry = self.log.append(
                "batch", self.generation.fingerprint, windows, directories=self.finalizer.late(windows)
            )
        except (InvalidValueError, FencedError):
            # Any other failure may be a commit whose response was lost.
            discard_files(self.store, files)
            raise
        if entry.windows != tuple(windows):
            # An entry that this driver had given up reached the store after all; this one was not committed.
            discard_files(self.store, files)
        self._complete(entry)
        return entry

    def finalize(self, limits: Mapping[str, int]) -> list[Finished]:
        """Write ``_SUCCESS`` to the directories that are over by the watermarks of their topics, oldest first.

        Does nothing while committed files are unpublished.
        """
        finished: list[Finished] = []
        while self.is_complete and (due := self.finalizer.due(limits)):
            self.is_complete = False
            entry = self.log.append("finalize", self.generation.fingerprint, directories=[one.path for one in due])
            self._complete(entry)
            # The log may return an earlier entry that this driver had given up.
            finished += [one for one in due if not entry.windows and one.path in entry.directories]
        return finished

    def redrive(self, window: WrittenWindow, aside: Aside) -> Entry:
        """Commit and publish redriven bad messages, and delete their old file.

        The entry names the generation that quarantined them, if this one has taken it over.
        """
        try:
            self.is_complete = False
            late = self.finalizer.late([window])
            other = -1 if aside.generation == self.generation.number else aside.generation
            entry = self.log.append(
                "redrive",
                self.generation.fingerprint,
                [window],
                removed=[aside.file.key],
                other=other,
                directories=late,
            )
        except FencedError:
            discard_files(self.store, window.files)
            raise
        if entry.windows != (window,):
            discard_files(self.store, window.files)
        self._complete(entry)
        return entry

    def finalize_again(self, paths: Sequence[str]) -> None:
        """Mark directories complete again whose ``_SUCCESS`` was removed."""
        if paths:
            self.is_complete = False
            self._complete(self.log.append("finalize", self.generation.fingerprint, directories=paths))

    def _complete(self, entry: Entry) -> None:
        self._finish(entry)
        self._tell(entry)

    def _judge(self, written: Sequence[Written]) -> None:
        bad = [
            (window.topic, window.partition, offset, reason)
            for window, reasons in written
            for offset, reason in sorted(reasons.items())
        ]
        count = sum(window.quarantined for window, _ in written)
        most = self.generation.own.max_bad_messages
        if 0 <= most < count:
            shown = "; ".join(f"{topic}-{number} at {offset}: {why}" for topic, number, offset, why in bad[:_SHOWN])
            raise InvalidValueError(
                f"{count} messages of a batch are bad, and secor.consumer.max_bad_messages is {most}, so nothing of it "
                f"is written ({shown}); fix the parser's settings, or raise the limit"
            )

    def _publish_one(self, file: OutputFile) -> None:
        try:
            self.store.publish(file.prepared)
        except PreconditionFailedError as error:
            raise PreconditionFailedError(
                f"{file.key} is committed and cannot be published: another program has written an object of that name; "
                "move it away, and start again"
            ) from error

    def _finish_last(self) -> None:
        if (number := self.log.state.unpublished) >= 0:
            self._finish(self.log.entry(number))
        self._tell(None)

    def _tell(self, entry: Entry | None) -> None:
        if self.generation.table is not None:
            self.generation.table.enter(self.log)
        self.is_complete = True
        if self._after is not None:
            self._after(entry, self.log.state)

    def _finish(self, entry: Entry) -> None:
        """Publish what this driver or an earlier one committed; rewrite files that the store has dropped since."""
        missing: list[OutputFile] = []
        self.log.check_alone()
        for file in entry.files:
            try:
                self._publish_one(file)
            except PreparedGoneError:
                missing.append(file)
        if missing:
            # A newer driver may have discarded it, so check the fence again.
            self.log.check_alone()
            _logger.warning("%d committed files were dropped by the store before they were published", len(missing))
            discard_files(self.store, missing)  # the store may still hold a part of some
            entry = self._write_again(entry, {file.key for file in missing})
        self.finalizer.write(entry)
        self.store.delete(entry.removed)

    def _write_again(self, entry: Entry, missing: set[str]) -> Entry:
        if entry.fingerprint != self.generation.fingerprint:
            raise ConfigError(
                f"{min(missing)} is committed under other settings of parser and files than these, and the store "
                "has dropped it before it was published: start once more with the settings that wrote it"
            )
        # A ``redrive`` entry lists one file to delete per window, in the same order.
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
                again, _ = self._writer.aside(window.window, key, self.generation)
            fresh = {file.key: file for file in again.files}
            if fresh.keys() != {file.key for file in window.files}:
                discard_files(self.store, again.files)
                raise ConfigError(
                    f"offsets {window.start} to {window.stop - 1} of {window.topic}-{window.partition} become other "
                    "files now than those that are committed: its records are not those that they were"
                )
            discard_files(self.store, [file for file in again.files if file.key not in missing])
            files = tuple(fresh[file.key] if file.key in missing else file for file in window.files)
            renewed += [file for file in files if file.key in missing]
            windows.append(replace(window, files=files))
        # Needed even if the bytes are equal: the log must know the newly prepared files in case this process dies here.
        again_entry = self.log.append(
            "rewrite", self.generation.fingerprint, windows, removed=entry.removed, directories=entry.directories
        )
        self.log.check_alone()
        for file in renewed:
            self._publish_one(file)
        return again_entry


def take_over(driver: Driver, number: int, topics: Sequence[str]) -> None:
    """Make the driver's generation, which has not begun, continue generation ``number``, and end that one.

    Its committed files are published first; a driver still running it is fenced. Safe to repeat after a kill, and a
    no-op once done. Raises ConfigError if there is nothing to take over, or another generation already has.
    """
    own = driver.generation
    state = own.log.read()
    if state.life is not Life.FREE:
        if state.other != number:
            raise ConfigError(
                f"generation {own.number} has begun without taking over generation {number}: leave --take-over "
                "out, or give another secor.generation"
            )
        return
    own.claim()
    own.refuse_strangers(topics)
    positions = _seal(driver, number, topics).positions
    windows = [
        Window(topic, one.topic_id, partition, one.next_offset, one.next_offset, one.leader_epoch).without_records()
        for (topic, partition), one in sorted(positions.items())
    ]
    own.log.append("take-over", own.fingerprint, windows, other=number)


def _seal(driver: Driver, number: int, topics: Sequence[str]) -> LogState:
    """Seal the previous generation unless that is done; return its final state."""
    before = driver.of_generation(number)
    log, own = before.generation.log, driver.generation

    def is_done(state: LogState) -> bool:
        return state.life is Life.SEALED and state.other == own.number

    state = log.read()
    if state.life is Life.FREE:
        raise ConfigError(f"generation {number} of {own.own.name} has no commit log: there is nothing to take over")
    if is_done(state):
        return state
    before.generation.refuse_ended()
    try:
        before.begin(topics)
        log.append("seal", before.generation.fingerprint, other=own.number)
    except (ConfigError, FencedError):
        # Another process may be doing the same: the new generation's log fences one of the two.
        if not is_done(log.read()):
            raise
    return log.state
