"""When a pipeline that goes on writes: by age, in partitions that are idle too, and whatever the time of day does."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.pipelines.pipeline_runs import NUMBER, TOPIC, listed_offsets, pipeline_of, run_once
from tests.support.records.stored_records import StoredTopic, plain_batch
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.model import TopicIdPartition
from tieredstore.pipelines import Parts, Pipeline, Runner
from tieredstore.pipelines.run.generation import commit_log_of
from tieredstore.pipelines.upkeep.inspection import verify_output
from tieredstore.testing.segments import PARTITION

HOUR_S = 3600
LOOK_S = 30
"""What there is is looked up no more often."""
NOON_S = 1_700_000_000 // HOUR_S * HOUR_S
MARKED = {
    "secor__max__file__age__seconds": str(HOUR_S),
    "secor__upload__minute_mark": "10",
    "secor__kafka__upload_at_minute_mark__topic_filter": TOPIC,
}


class Clocked:
    """A pipeline that goes on; ``now_s`` only goes up, the time of day does what it likes."""

    def __init__(self, topic: StoredTopic, pipeline: Pipeline) -> None:
        self.store, self.now_s, self.wall_s = MemoryObjectStore(), 0.0, float(NOON_S)
        self.pipeline = pipeline
        self._runner = Runner(
            pipeline, Parts(self.store, topic.manager), threads=1,
            clock=lambda: self.now_s, wall_clock=lambda: self.wall_s,
        )  # fmt: skip

    def step(self) -> int:
        """How many windows are written at this moment."""
        entry = self._runner.step()
        return 0 if entry is None else sum(window.start < window.stop for window in entry.windows)

    def close(self) -> None:
        self._runner.close()


def test_partitions_that_are_idle_are_written_by_age_and_no_look_after_that_writes_anything(tmp_path: Path) -> None:
    idle = TopicIdPartition(PARTITION.topic_id, TOPIC, NUMBER + 1)
    with closing(StoredTopic(tmp_path)) as topic, closing(Clocked(topic, pipeline_of())) as clocked:
        topic.copy(0, [plain_batch(range(3), 20)], partition=idle)
        assert clocked.step() == 0
        clocked.now_s = HOUR_S / 2
        topic.copy_plain(0, 20, size=20)
        assert clocked.step() == 0
        clocked.now_s = HOUR_S - 1
        assert clocked.step() == 0
        clocked.now_s = HOUR_S
        # The idle one alone: the other's records are half an hour old.
        assert clocked.step() == 1
        clocked.now_s = HOUR_S * 3 / 2
        assert clocked.step() == 1
        entries = commit_log_of(clocked.pipeline, clocked.store).read().number
        for _ in range(3):
            clocked.now_s += HOUR_S
            assert clocked.step() == 0
        assert commit_log_of(clocked.pipeline, clocked.store).read().number == entries
        assert len(listed_offsets(clocked.store)) == 23


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.sampled_from([0, 1, 600, 4000]),
            st.sampled_from([0, 60, 700, -60, -HOUR_S, -90 * 86_400, 400 * 86_400]),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_a_time_of_day_that_jumps_decides_when_records_are_written_and_nothing_else(
    steps: list[tuple[int, int, int]],
) -> None:
    """With a minute mark, which is the only policy that asks for it."""
    pipeline = pipeline_of(**MARKED)
    with tempfile.TemporaryDirectory() as folder, closing(StoredTopic(Path(folder))) as topic:
        written = 0
        with closing(Clocked(topic, pipeline)) as clocked:
            for count, passed_s, jumped_s in steps:
                if count:
                    topic.copy_plain(written, count, size=20)
                    written += count
                clocked.now_s += LOOK_S
                clocked.step()
                clocked.now_s += passed_s
                clocked.wall_s += passed_s + jumped_s
                clocked.step()
                offsets = listed_offsets(clocked.store)
                assert offsets == list(range(len(offsets)))
                if passed_s >= HOUR_S:
                    # Whatever the time of day is: they are old.
                    assert offsets == list(range(written))
            store = clocked.store
        if written:
            run_once(topic, store, pipeline)
        assert listed_offsets(store) == list(range(written))
        assert list(verify_output(pipeline, store)) == []
