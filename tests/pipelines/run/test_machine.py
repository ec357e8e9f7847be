"""A state machine: two processes run one pipeline, and both may believe that they own it.

A process may die, fail or sleep at any operation of the output's store. While it sleeps, the other process works. A
process may also start the next generation (version of the output), which takes over from the present one. Records may
be late, and the store may drop uploads before their publication.

Each record is in exactly one committed file, and in the directory of its hour. No committed file is missing or changed,
except those of the last entry until a driver is complete. A batch states each complete directory to which it adds
records. Generations, directories and drivers change only as their tables of transitions allow.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.pipelines.log.test_log_histories import FOLLOWS
from tests.support.examples import examples
from tests.support.pipelines.pipeline_runs import listed, offsets_of, pipeline_of, verify_output
from tests.support.records.hourly_topics import BY_HOUR, HOUR_MS, NOON_MS, copy_times, day, successes
from tests.support.records.stored_records import StoredTopic
from tests.support.stores.doubles import Moment, Operation, ScriptedStore
from tests.support.stores.operation_sweep import Killed
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import ConfigError, FencedError, StoreUnavailableError
from tieredstore.pipelines import Parts, Runner
from tieredstore.pipelines.log.commit_log import Life, LogState
from tieredstore.pipelines.log.entries import OutputFile
from tieredstore.pipelines.run.generation import commit_log_of

GENERATIONS: Final = {
    number: pipeline_of(**BY_HOUR, secor__generation=str(number), max__file__records="3") for number in (1, 2, 3)
}
MIDNIGHT_MS: Final = NOON_MS - 12 * HOUR_MS

What = Literal["run", "step", "finalize", "mark"]
WHAT: Final = st.sampled_from(["run", "run", "step", "finalize", "mark"])
TIMES: Final = st.lists(st.sampled_from([0, 0, 1, 2, 3, 5]), min_size=1, max_size=4)


class Process:
    """A process that runs a generation. ``act`` is due at a moment of an operation of the store."""

    def __init__(self, machine: PipelineMachine, generation: int, take_over: int | None) -> None:
        self.generation, self.due = generation, (-1, "")
        self.is_dead = self.is_fenced = self.has_failed = False
        self.act: Callable[[], None] = self.die
        self.store = ScriptedStore(machine.store)
        moments: tuple[Moment, ...] = ("before", "after")
        for moment in moments:
            self.store.on(do=partial(self._reach, moment), moment=moment)
        self.runner = Runner(
            GENERATIONS[generation],
            Parts(self.store, machine.topic.manager),
            threads=1,
            take_over=take_over,
            clock=lambda: machine.now_s,
            wall_clock=lambda: MIDNIGHT_MS / 1000 + machine.now_s,
        )

    def _reach(self, moment: str, operation: Operation) -> None:
        if (operation.number, moment) == self.due:
            self.act()
        if self.is_dead:
            raise Killed

    def die(self) -> None:
        self.is_dead = True

    def fail(self) -> None:
        raise StoreUnavailableError("the machine fails this operation")

    def work(self, what: What) -> None:
        if self.has_failed:
            self.runner.resume()
        match what:
            case "run":
                list(self.runner.run_once())
            case "step":
                self.runner.step()
            case "finalize":
                self.runner.finalize()
            case "mark":
                self.runner.driver.mark_published()
        self.has_failed = False


class PipelineMachine(RuleBasedStateMachine):
    """``hours`` has the hour of each record of the topic, all on one day."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.topic, self.store = StoredTopic(self.folder), MemoryObjectStore()
        self.hours: list[int] = []
        self.now_s = 0.0
        self.processes: dict[int, Process] = {}
        self.offsets = cache(partial(offsets_of, self.store))

    @initialize(times=TIMES)
    def begin(self, times: list[int]) -> None:
        self.append(times, 0)

    @rule(times=TIMES, passed=st.integers(0, 3))
    def append(self, times: list[int], passed: int) -> None:
        """Let hours pass, then append a segment with records that are this many hours old. Old records may be late."""
        self.now_s += passed * 3600
        hours = [min(23, max(0, int(self.now_s // 3600) - time)) for time in times]
        copy_times(self.topic, len(self.hours), [hour - 12 for hour in hours])
        self.hours += hours
        self.now_s += 60

    @rule(number=st.integers(0, 1), takes_over=st.booleans())
    def start(self, number: int, *, takes_over: bool) -> None:
        """Start a process, in place of an earlier one that has ended."""
        states = self._states()
        owner = max((one for one, state in states.items() if state.life is not Life.FREE), default=1)
        is_next = states[owner].life is Life.SEALED or (takes_over and states[owner].number >= 0 and owner < 3)
        self.processes[number] = Process(self, owner + is_next, owner if is_next else None)

    def work(self, number: int, what: What) -> None:
        if number not in self.processes:
            self.start(number, takes_over=False)
        process = self.processes[number]
        before = {info.key: info.etag for info in self.store.list()} if process.is_fenced else None
        try:
            process.work(what)
            is_idle = process.is_fenced or what in {"mark", "finalize"}  # these may have nothing to do
            assert process.runner.driver.is_complete or is_idle
        except Killed:
            self.processes.pop(number)
        except StoreUnavailableError:
            process.has_failed = True
        except FencedError:
            process.is_fenced = True
        except ConfigError:
            assert self._states()[process.generation].life is Life.SEALED
            self.processes.pop(number)
        assert before is None or before == {info.key: info.etag for info in self.store.list()}

    @rule(
        number=st.integers(0, 1),
        what=WHAT,
        trouble=st.sampled_from(["none", "die", "fail", "sleep"]),
        moment=st.sampled_from(["before", "after"]),
        after=st.integers(0, 29),
        times=TIMES,
        others=st.sampled_from(["run", "step", "take over"]),
        drops=st.booleans(),
    )
    def work_in_trouble(
        self, number: int, what: What, trouble: str, moment: str, after: int, times: list[int], others: str, drops: bool
    ) -> None:
        """Let a process work. At one operation, it dies, fails or sleeps. While it sleeps, the other process works.
        With ``drops``, the store then drops the uploads of the last entry, as a rule of a bucket does.
        """

        def sleep() -> None:
            self.append(times, 0)
            if others == "take over" or (1 - number in self.processes and self.processes[1 - number].is_fenced):
                self.start(1 - number, takes_over=others == "take over")
            self.work(1 - number, "step" if others == "step" else "run")

        if number not in self.processes or (trouble != "none" and self.processes[number].is_fenced):
            self.start(number, takes_over=False)
        process = self.processes[number]
        if trouble != "none":
            acts: dict[str, Callable[[], None]] = {"die": process.die, "fail": process.fail, "sleep": sleep}
            process.act, process.due = acts[trouble], (len(process.store.operations) + after, moment)
        self.work(number, what)
        process.due = -1, ""
        for file in self._unpublished() if drops else []:
            self.store.discard(file.prepared)

    def _states(self) -> dict[int, LogState]:
        return {number: commit_log_of(one, self.store).read() for number, one in GENERATIONS.items()}

    def _unpublished(self) -> list[OutputFile]:
        """Return the files of last entries that may be unpublished."""
        return [
            file
            for number, state in self._states().items()
            if state.unpublished >= 0 and not state.closed
            for file in commit_log_of(GENERATIONS[number], self.store).entry(state.unpublished).files
        ]

    def _is_complete(self) -> bool:
        """Return True if a driver is complete, and no other driver has written an entry since."""
        states = self._states()
        owner = max(number for number, state in states.items() if number == 1 or state.life is not Life.FREE)
        drivers = [one.runner.driver for one in self.processes.values() if one.generation == owner]
        return any(one.is_complete and one.log.state.number == states[owner].number for one in drivers)

    @invariant()
    def output_and_logs_agree(self) -> None:
        files, complete, latest_ms = dict[str, OutputFile](), set[str](), -1
        for pipeline in GENERATIONS.values():
            state = LogState()
            for entry in commit_log_of(pipeline, self.store).entries():
                life = state.life
                state.apply(entry)
                assert life is not Life.SEALED, "a sealed generation goes on"
                assert state.life is FOLLOWS[life].get(entry.kind, life)
                latest_ms = max([latest_ms, *(file.max_timestamp for file in entry.files)])
                directories = {file.key.rpartition("/")[0] for file in entry.files}
                assert directories & complete <= set(entry.directories), "late records without a statement"
                if entry.kind == "finalize":
                    over = {day(hour) for hour in range(24) if MIDNIGHT_MS + (hour + 2) * HOUR_MS <= latest_ms}
                    assert set(entry.directories) <= over - complete
                    complete.update(entry.directories)
                assert entry.kind == "rewrite" or files.keys().isdisjoint(file.key for file in entry.files)
                files |= {file.key: file for file in entry.files}
        visible = {key for key in listed(self.store) if not key.endswith("/_SUCCESS")}
        assert visible <= files.keys(), "visible, but not committed"
        assert files.keys() - visible <= {file.key for file in self._unpublished()}, "committed, but missing"
        assert sum(file.records for file in files.values()) == self._end()
        offsets = Counter[int]()
        for key in visible:
            own = self.offsets(key)
            offsets.update(own)
            assert len(own) == files[key].records
            assert {day(self.hours[offset]) for offset in own} == {key.rpartition("/")[0]}
        assert offsets <= Counter(range(self._end())), "a record is visible twice, or is not committed"
        assert successes(self.store).keys() <= complete
        if self._is_complete():
            held = {path: [file for file in files.values() if file.key.startswith(f"{path}/")] for path in complete}
            assert visible == files.keys()
            assert {path: said[:2] for path, said in successes(self.store).items()} == {
                path: (len(own), sum(file.records for file in own)) for path, own in held.items()
            }

    def _end(self) -> int:
        """Return the first offset that is not committed."""
        ends = [one.next_offset for state in self._states().values() for one in state.positions.values()]
        return max(ends, default=0)

    def teardown(self) -> None:
        try:
            if not self.hours:
                return
            self.start(0, takes_over=False)
            self.work(0, "run")
            self.output_and_logs_agree()
            assert self._is_complete()
            assert self._end() == len(self.hours)
            over = {day(hour) for hour in self.hours if hour <= max(self.hours) - 2}
            assert over <= successes(self.store).keys()
            assert list(verify_output(GENERATIONS[self.processes[0].generation], self.store)) == []
        finally:
            self.topic.close()
            shutil.rmtree(self.folder)


TestPipeline = pytest.mark.usefixtures("inline_threads")(PipelineMachine.TestCase)
TestPipeline.settings = settings(max_examples=examples(150), stateful_step_count=20)
