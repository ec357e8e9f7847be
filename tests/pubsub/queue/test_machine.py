"""A state machine: three processes append to one partition of a queue in a store, read it, and free its beginning.

At any operation of the store, a process may fail, die, lose the answer or its connection, or sleep. While it sleeps,
the other processes work. A write whose caller has given up may take effect much later. A new process takes the place of
a dead one, and continues its reader.

Numbers are dense. A number's entry never changes, and an acknowledged entry stays until retention frees it. An entry
has one number, unless retention freed it during its append: then nobody knows if readers have seen it, and it gets
another number (except by ``append_once``, which raises DataLossError). An append that begins after another has ended
gets a later offset. Start and end never go back. A reader gets each entry in order, or a loss that retention explains.
"""

from __future__ import annotations

import json
from typing import Final, Literal, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import DelegatingObjectStore, FaultyStore, LateStore, Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import DyingStore, Killed
from tieredstore.backends.base import ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import DataLossError, InvalidRangeError, PreconditionFailedError, StoreUnavailableError
from tieredstore.process.deadline import Deadline
from tieredstore.pubsub.queue.own_objects import OwnFolder
from tieredstore.pubsub.queue.queues import QueuedNotification
from tieredstore.pubsub.queue.store_queue import ENTRY_NOTIFICATIONS, StoreQueue

QUEUE: Final = "!tieredstore/pubsub/default/queues/orders/0/"
PROCESSES: Final = 3
ALL: Final = 3
"""Number of entries that a process frees if it frees all entries."""
IDLE_READS: Final = 17
"""Number of reads without a result after which a reader has checked everything."""

Entry = tuple[bytes, ...]
What = Literal["append", "append once", "free", "read"]
Trouble = Literal["none", "fail", "stay away", "die", "be late", "sleep"]


class Work(NamedTuple):
    """Work of a process, and its trouble at a ``moment`` of the operation that comes ``after`` so many others."""

    what: What
    size: int
    trouble: Trouble
    after: int
    moment: Moment
    patience_s: float


WORK: Final = st.builds(
    Work,
    what=st.sampled_from(["append", "append", "append once", "free", "read"]),
    size=st.integers(1, ALL),
    trouble=st.sampled_from(["none", "fail", "stay away", "die", "be late", "sleep"]),
    after=st.sampled_from([0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 8]),
    moment=st.sampled_from(["before", "during", "after"]),
    patience_s=st.sampled_from([0.05, 60.0]),  # after a failure, the shorter one leaves no time for a retry
)


QUIET: Final = Work("append", 1, "none", 0, "before", 60.0)


class Process:
    """A process with a queue of its own, and a reader that continues at ``position``."""

    def __init__(self, store: ObjectStore, clock: SimulatedClock, position: int = 0) -> None:
        self.store = DelegatingObjectStore(store)
        folder = OwnFolder(self.store, "", "default")
        self.queue = StoreQueue(folder, "orders", lambda: 1, sleep=clock.sleep)
        self.seek(position)

    def seek(self, position: int) -> None:
        self.position = position
        self.cursor = self.queue.cursor(0, position)


class QueueMachine(RuleBasedStateMachine):
    """``entries`` has each entry that readers could see, by number, and ``numbers`` the last number of each entry."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.clock = MemoryObjectStore(), SimulatedClock()
        self.entries: dict[int, Entry] = {}
        self.stored: dict[int, Entry] = {}
        """The present entries, also those that a late write has put at a freed number."""
        self.numbers: dict[Entry, int] = {}
        self.start = self.end = self.freed_to = self.made = 0
        self.once: dict[int, tuple[int, Entry]] = {}
        """For ``append_once``: the entries that are appended repeatedly, each with its ``since``."""
        self.late: list[LateStore] = []
        self.processes = dict(enumerate(self._process() for _ in range(PROCESSES)))

    def _process(self, position: int = 0) -> Process:
        return Process(self.store, self.clock, position)

    # ---- rules

    @rule(number=st.integers(0, PROCESSES - 1), work=WORK, others=st.lists(WORK, max_size=5))
    def work(self, number: int, work: Work, others: list[Work]) -> None:
        """Run one process's work. If the process sleeps in it, run the other processes, one after the other."""
        process = self.processes.pop(number)
        process.store.inner = self._store_in_trouble(work, others)
        acts = {"append": self.append, "append once": self.append_once, "free": self.free, "read": self.read}
        try:
            acts[work.what](process, work)
        except Killed:
            process = self._process(process.position)
        except StoreUnavailableError:
            assert work.trouble in {"fail", "stay away", "be late"}
        finally:
            if isinstance(late := process.store.inner, LateStore) and late.is_late:
                self.late.append(late)
            process.store.inner = self.store
            self.processes[number] = process
        self.look()

    @rule(works=st.lists(st.tuples(st.integers(0, PROCESSES - 1), WORK), max_size=8))
    def work_in_peace(self, works: list[tuple[int, Work]]) -> None:
        for number, work in works:
            self.work(number, work._replace(trouble="none"), [])

    def _store_in_trouble(self, work: Work, others: list[Work]) -> ObjectStore:
        def sleep(_: Operation) -> None:
            self.look()
            for turn, other in enumerate(others):
                self.work(sorted(self.processes)[turn % len(self.processes)], other, [])

        match work.trouble:
            case "none":
                return self.store
            case "fail" | "stay away":
                return FaultyStore(self.store, work.after, moment=work.moment, for_good=work.trouble == "stay away")
            case "die":
                return DyingStore(self.store, work.after, work.moment)
            case "be late":
                return LateStore(self.store, f"{QUEUE}*")
            case "sleep":
                return ScriptedStore(self.store).on(do=sleep, moment=work.moment, skip=work.after, times=1)

    @precondition(lambda self: self.late)
    @rule(index=st.integers(0, 9))
    def land(self, index: int) -> None:
        self.late.pop(index % len(self.late)).land()

    @rule(number=st.integers(0, PROCESSES - 1), share=st.floats(0, 1), place=st.sampled_from([0, 1, 255]))
    def seek(self, number: int, share: float, place: int) -> None:
        at = round(share * self.end)
        self.processes[number].seek(at * ENTRY_NOTIFICATIONS + (place if at < self.end else 0))

    @rule(number=st.integers(0, PROCESSES - 1))
    def read_all(self, number: int) -> None:
        process, idle = self.processes[number], 0
        while idle < IDLE_READS:
            before = process.position
            self.read(process, QUIET._replace(what="read"))
            idle = idle + 1 if process.position == before else 0
        assert self._next_of(process.position) == self.end * ENTRY_NOTIFICATIONS

    # ---- what a process does

    def _deadline(self, work: Work) -> Deadline:
        return Deadline.after(work.patience_s, self.clock)

    def _new_entry(self, name: str, count: int) -> Entry:
        self.made += 1
        return tuple(f"{name} {self.made}.{index}".encode() for index in range(count))

    def append(self, process: Process, work: Work) -> None:
        entry, end = self._new_entry("entry", work.size), self.end
        offsets = process.queue.append(0, entry, self._deadline(work))
        self._acknowledge(entry, offsets, end * ENTRY_NOTIFICATIONS)

    def append_once(self, process: Process, work: Work) -> None:
        """Append one of three entries, which may have been appended before."""
        if work.size not in self.once:
            self.once[work.size] = self.end * ENTRY_NOTIFICATIONS, self._new_entry("once", work.size)
        since, entry = self.once[work.size]
        try:
            offsets = process.queue.append_once(0, entry, entry[0].decode(), since, self._deadline(work))
        except DataLossError:
            self.look()
            assert since < self.start * ENTRY_NOTIFICATIONS
            self.once.pop(work.size, None)  # the next time, append another entry
        else:
            self._acknowledge(entry, offsets, since)

    def _acknowledge(self, entry: Entry, offsets: list[int], least: int) -> None:
        self.look()
        first = self.numbers[entry] * ENTRY_NOTIFICATIONS
        assert offsets == list(range(first, first + len(entry))), "acknowledged, but not in the queue"
        assert least <= first, "the order is lost"

    def free(self, process: Process, work: Work) -> None:
        start, end = self.start, self.end
        number = end if work.size == ALL else start + work.size
        self.freed_to = max(self.freed_to, number)
        try:
            process.queue.free(0, number * ENTRY_NOTIFICATIONS + 3)
        except PreconditionFailedError:
            self.look()
            assert start < self.start, "no other process has freed anything"
        except InvalidRangeError:
            assert end < number
        else:
            self.look()
            assert number <= self.start

    def read(self, process: Process, work: Work) -> None:
        for _ in range(work.size):
            found: list[QueuedNotification] = []
            lost_to: int | None = None
            try:
                found = process.cursor.read()
            except DataLossError as error:
                lost_to = error.continue_at or 0
            self.look()
            for one in found:
                self._take(process, one)
                assert one is not found[-1] or process.cursor.offset == process.position
            if lost_to is not None:
                assert process.position < lost_to <= self.start * ENTRY_NOTIFICATIONS
                process.seek(lost_to)

    def _take(self, process: Process, one: QueuedNotification) -> None:
        number, place = divmod(one.offset, ENTRY_NOTIFICATIONS)
        if self.entries[number][place : place + 1] == (one.raw,):
            assert one.offset == self._next_of(process.position)
            process.position = self._next_of(one.offset + 1)
        else:
            # A writer that slept, or a late write, has put an entry at a freed number.
            assert number < self.start
            process.position = one.next_offset

    def _next_of(self, offset: int) -> int:
        """Return the first offset from ``offset`` on that has a notification, or the end."""
        number, place = divmod(offset, ENTRY_NOTIFICATIONS)
        if 0 < place >= len(self.stored.get(number) or self.entries[number]):
            return (number + 1) * ENTRY_NOTIFICATIONS
        return offset

    # ---- invariants

    def look(self) -> None:
        """Compare the store with the model, and note what is new."""
        stored = {info.key.removeprefix(QUEUE): self.store.get(info.key) for info in self.store.list(QUEUE)}
        start = int(json.loads(stored.pop("start", b'{"number":0}'))["number"])
        entries = {int(name): tuple(raw.splitlines()[1:]) for name, raw in stored.items()}
        end = max([start, *(number + 1 for number in entries)])
        assert self.start <= start <= self.freed_to
        assert self.end <= end
        assert entries.keys() >= set(range(start, end)), "a number is missing"
        for number in range(self.end, end):
            entry = self.entries[number] = entries[number]
            before = self.numbers.setdefault(entry, number)
            assert before == number or (before < start and not entry[0].startswith(b"once")), "an entry is there twice"
            self.numbers[entry] = number
        assert all(entries[number] == self.entries[number] for number in range(start, end)), "an entry has changed"
        self.start, self.end, self.stored = start, end, entries

    @invariant()
    def readers_see_what_is_stored(self) -> None:
        self.look()
        queue = self._process().queue
        assert (queue.start(0), queue.end(0)) == (self.start * ENTRY_NOTIFICATIONS, self.end * ENTRY_NOTIFICATIONS)
        expected = [raw for number in range(self.start, self.end) for raw in self.entries[number]]
        assert [one.raw for one in queue.walk(0)] == expected
        for number in {0, self.start - 1} & set(range(self.start)):
            if not list(self.store.list(f"{QUEUE}{number:020}")):
                with pytest.raises(DataLossError, match=f"continue at {self.start * ENTRY_NOTIFICATIONS}"):
                    queue.read(0, number * ENTRY_NOTIFICATIONS)

    def teardown(self) -> None:
        while self.late:
            self.land(0)
        for number in range(PROCESSES):
            self.work(number, QUIET, [])
            self.read_all(number)
        self.work(0, QUIET._replace(what="free", size=ALL), [])
        assert [info.key for info in self.store.list(QUEUE)] == [f"{QUEUE}start"]
        self.readers_see_what_is_stored()


TestQueue = pytest.mark.usefixtures("inline_threads")(QueueMachine.TestCase)  # nothing is hedged
TestQueue.settings = settings(max_examples=examples(500), stateful_step_count=20)
