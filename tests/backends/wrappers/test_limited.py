"""The limited store: tokens it takes from its buckets, and their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fresh_python import run_fresh
from tieredstore.backends.base import Body, ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.wrappers.stack import LimitedStore, MeteredStore, TokenBucket
from tieredstore.errors import AccessDeniedError, InvalidRangeError, ObjectNotFoundError

RATE = 1000


class CountingBucket(TokenBucket):
    """A token bucket that records the tokens taken and the ends of waits, without sleeping."""

    def __init__(self, rate: int = RATE) -> None:
        self.now = 0.0
        self.taken: list[int] = []
        super().__init__(rate, monotonic=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def take(self, count: int) -> None:
        super().take(count)
        self.taken.append(count)


@dataclass
class Watched(MemoryObjectStore):
    """A store that records when, by the token bucket's clock, each call and each buffer of a body arrived."""

    bucket: CountingBucket
    came: list[tuple[str, int, float]] = field(default_factory=list[tuple[str, int, float]])
    bodies: list[Body] = field(default_factory=list[Body])

    def __post_init__(self) -> None:
        super().__init__()

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        self.bodies.append(body)

        def watched() -> Iterator[bytes]:
            for part in [body] if isinstance(body, bytes | bytearray | memoryview) else body:
                self.came.append(("put", len(part), self.bucket.now))
                yield bytes(part)

        super().put(key, watched(), if_absent=if_absent)

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        data = super().get(key, start, stop)
        self.came.append(("get", len(data), self.bucket.now))
        return data


@pytest.fixture
def bucket() -> CountingBucket:
    return CountingBucket()


@pytest.fixture
def inner(bucket: CountingBucket) -> Watched:
    return Watched(bucket)


def test_a_buffer_within_the_burst_is_handed_on_as_it_is(bucket: CountingBucket, inner: Watched) -> None:
    body = b"x" * RATE
    LimitedStore(inner, up=bucket).put("a", body)
    assert inner.bodies[0] is body
    assert bucket.taken == [RATE]


def test_a_longer_buffer_flows_in_pieces_at_the_rate(bucket: CountingBucket, inner: Watched) -> None:
    LimitedStore(inner, up=bucket).put("a", bytearray(3 * RATE + 500))
    assert inner.came == [("put", 1000, 0.0), ("put", 1000, 1.0), ("put", 1000, 2.0), ("put", 500, 2.5)]


def test_a_ranged_read_waits_before_its_request_and_a_whole_one_after(bucket: CountingBucket, inner: Watched) -> None:
    MemoryObjectStore.put(inner, "a", bytes(2 * RATE))
    store = LimitedStore(inner, down=bucket)
    store.get("a", 0, RATE)
    store.get("a", 0, RATE)
    store.get("a")
    assert inner.came == [("get", 1000, 0.0), ("get", 1000, 1.0), ("get", 2000, 1.0)]
    assert bucket.now == 3.0


def test_what_moves_no_object_s_bytes_takes_no_tokens(bucket: CountingBucket, inner: Watched) -> None:
    store = LimitedStore(inner, up=bucket, down=bucket)
    store.put("a", b"")
    store.head("a")
    list(store.list())
    store.get("a")
    store.get("a", 7, 7)
    store.get_into("a", 7, bytearray())
    store.delete(["a"])
    store.close()
    assert sum(bucket.taken) == 0
    for start, stop in ((7, 5), (-3, -5)):
        with pytest.raises(InvalidRangeError):
            store.get("a", start, stop)
    assert sum(bucket.taken) == 0


def test_a_call_that_fails_keeps_its_tokens(bucket: CountingBucket, inner: Watched) -> None:
    with pytest.raises(ObjectNotFoundError):
        LimitedStore(inner, down=bucket).get("absent", 0, 300)
    assert bucket.taken == [300]


def test_up_and_down_are_limited_each_by_its_own_bucket(inner: Watched) -> None:
    up, down = CountingBucket(), CountingBucket()
    store = LimitedStore(inner, up, down)
    store.put("a", [b"12", b"345"])
    store.get_into("a", 1, bytearray(3))
    store.replace("a", b"1234", store.head("a").etag or "")
    store.get("a")
    assert (up.taken, down.taken) == ([2, 3, 4], [3, 4])


class Refusing(MemoryObjectStore):
    """A store that refuses a write before it reads any of the body."""

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        raise AccessDeniedError("no")


@pytest.mark.parametrize(
    "wrap",
    [MeteredStore, lambda inner: LimitedStore(inner, CountingBucket()),
     lambda inner: LimitedStore(MeteredStore(inner), CountingBucket())],
    ids=["metered", "limited", "both"],
)  # fmt: skip
def test_a_body_that_the_store_refused_unseen_is_closed(wrap: Callable[[ObjectStore], ObjectStore]) -> None:
    closed: list[bool] = []

    def body() -> Iterator[bytes]:
        try:
            yield b"first"
            yield b"second"
        finally:
            closed.append(True)

    begun = body()
    next(begun)
    with pytest.raises(AccessDeniedError):
        wrap(Refusing()).put("a", begun)
    assert closed == [True]


@given(st.lists(st.one_of(st.binary(max_size=2500), st.lists(st.binary(max_size=1500), max_size=4)), max_size=6))
def test_every_byte_counts_once_and_arrives(bodies: list[bytes | list[bytes]]) -> None:
    bucket = CountingBucket()
    store = LimitedStore(MemoryObjectStore(), up=bucket)
    for number, body in enumerate(bodies):
        store.put(str(number), body)
    whole = [body if isinstance(body, bytes) else b"".join(body) for body in bodies]
    assert [store.get(str(number)) for number in range(len(bodies))] == whole
    total = sum(map(len, whole))
    assert sum(bucket.taken) == total
    assert bucket.now == pytest.approx(max(0.0, (total - RATE) / RATE), abs=1e-6)


def test_a_forked_child_takes_although_another_thread_took_during_the_fork() -> None:
    run_fresh("""
        import os, signal, threading, time, warnings
        from tieredstore.backends.wrappers.stack import TokenBucket

        warnings.simplefilter("ignore", DeprecationWarning)
        inside, parent, go_on = threading.Event(), os.getpid(), threading.Event()

        def monotonic():
            # The bucket asks for the time under its lock.
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                go_on.wait(20)
            return time.monotonic()

        bucket = TokenBucket(1000, monotonic=monotonic)
        thread = threading.Thread(target=bucket.take, args=(1,))
        thread.start()
        inside.wait(20)
        child = os.fork()
        if not child:
            signal.alarm(20)
            bucket.take(1)
            os._exit(0)
        ended = os.waitpid(child, 0)[1]
        go_on.set()
        thread.join()
        assert ended == 0, ended
    """)
