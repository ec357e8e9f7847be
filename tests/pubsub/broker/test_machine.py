"""A state machine: clients send, repeat and leave; the store fails; topics move; the broker drains or dies.

The broker runs on a virtual clock, without sockets or threads. Work for threads waits until a rule runs it.

Each request gets one answer, unless its connection ends. Only slow clients and an ending broker end connections. A
Message that is answered with OK is stored and notified. It is written again only if its last write failed, or after ten
minutes. The broker's buffer never overflows, is empty when no work is left, and never waits for itself. A drain that
ends in time stores all Messages that the broker has taken.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product
from types import SimpleNamespace
from typing import Any, Final, Literal, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import examples
from tests.support.inline_threads import run_task
from tests.support.pubsub.pubsub_brokers import message_of, write_of
from tests.support.pubsub.pubsub_topics import topics_on
from tests.support.stores.doubles import Operation, ScriptedStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.errors import AccessDeniedError
from tieredstore.process.thread_pool import ThreadPool
from tieredstore.pubsub.broker.broker import Broker
from tieredstore.pubsub.broker.connection import LEAST_PACE_S, Connection
from tieredstore.pubsub.broker.processor import WINDOW_S
from tieredstore.pubsub.format.batches import headers_in
from tieredstore.pubsub.format.messages import MessageHeader, ProducerRequest
from tieredstore.pubsub.format.notifications import BatchFacts
from tieredstore.pubsub.format.packets import (
    Code,
    Request,
    Response,
    WriteRequest,
    parse_response,
    request_bytes,
)
from tieredstore.pubsub.governor.directory import AllTopics, Directory, StoreTopics
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.settings import BatchBrokerSettings

BATCH_S: Final = 1.0
BUFFER_BYTES: Final = 160_000
TOPICS: Final = ("orders", "later")
ALL_S: Final = 3600.0

Kind = Literal["message", "empty", "damaged"]
Fate = Literal["stored", "refused", "orphan", "answer lost", "crash"]
FATES: Final = st.sampled_from(["stored", "stored", "stored", "refused", "orphan", "answer lost", "crash"])
KINDS: Final = st.sampled_from(["message", "message", "message", "message", "empty", "damaged"])
CLIENTS: Final = st.integers(0, 2)


class Selector(selectors.SelectSelector):
    """Instead of waiting, advances the virtual clock to the next timer, or stops the loop at ``until_s``."""

    now_s = until_s = 0.0
    stop: Callable[[], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            next_s = math.inf if timeout is None else self.now_s + timeout
            self.now_s = min(next_s, self.until_s)
            if next_s > self.until_s:
                self.stop()
        return ready


class SteppedLoop(asyncio.SelectorEventLoop):
    """Event loop that runs only in ``run_for``. A server gets its connections from ``accept``."""

    def __init__(self) -> None:
        self.clock = Selector()
        super().__init__(self.clock)
        self.clock.stop = self.stop
        self.accept: Callable[[], Connection]

    def time(self) -> float:
        return self.clock.now_s

    def run_for(self, seconds: float = 0.0) -> None:
        """Let virtual time pass, and run everything that is due until then."""
        self.clock.until_s = self.clock.now_s + seconds
        self.run_forever()

    async def create_server(self, *given: Any, **_: Any) -> Any:
        self.accept = given[0]
        listening = SimpleNamespace(getsockname=lambda: ("here", 9092), fileno=lambda: 1 << 20)
        return SimpleNamespace(sockets=[listening], close=lambda: None)


class Threads:
    """Work that the loop gives to thread pools. It waits until a test runs it."""

    def __init__(self, loop: SteppedLoop) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.patched = pytest.MonkeyPatch()
        closed = set[ThreadPool]()

        def submit(pool: ThreadPool, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if pool in closed:
                raise RuntimeError("the threads were shut down")
            task = Future[Any](), partial(work, *args, **kwargs)
            if loop.is_running():
                self.waiting.append(task)
            else:
                run_task(*task)
            return task[0]

        def shutdown(pool: ThreadPool, wait: bool = True, *, cancel_futures: bool = False) -> None:
            closed.add(pool)

        self.patched.setattr(ThreadPool, "submit", submit)
        self.patched.setattr(ThreadPool, "shutdown", shutdown)

    def run(self, number: int) -> None:
        run_task(*self.waiting.pop(number % len(self.waiting)))


@dataclass
class Sent:
    """A request. Its last byte is byte ``end`` of its connection. ``moves`` is how often its topic had moved before."""

    write: WriteRequest
    message: ProducerRequest
    kind: Kind
    moves: int = 0
    end: int = 0
    answer: Response | None = None


class Client(asyncio.Transport):
    """A client, and the broker's end of its connection."""

    def __init__(self, machine: BrokerMachine, address: str) -> None:
        super().__init__({"peername": (address, 1)})
        self.machine, self.loop = machine, machine.loop
        self.requests: dict[int, Sent] = {}
        self.unsent = self.arrived = b""  # at the client, and at the broker
        self.sent_bytes = 0
        self.has_left = self.is_paused = self.is_over = self.is_gone = False
        self.connection = self.loop.accept()
        self.loop.call_soon(self.connection.connection_made, self)

    # --- the client ---

    def send(self, sent: Sent, left_out: float = 0.0) -> None:
        """Send the rest of the last request, and this one without its last part."""
        self.go_on()
        number = next(self.machine.numbers)
        frame = request_bytes(Request(5, number, sent.write))
        self.requests[number], sent.end = sent, self.sent_bytes + len(frame)
        self.unsent = frame
        self.go_on(int(len(frame) * left_out))

    def go_on(self, kept: int = 0) -> None:
        count = len(self.unsent) - kept
        self.arrived, self.unsent = self.arrived + self.unsent[:count], self.unsent[count:]
        self.sent_bytes += count
        self.loop.call_soon(self.arrive)

    def leave(self) -> None:
        self.has_left = self.is_over = True
        if not self.is_paused and not self.is_gone:
            self.loop.call_soon(self.connection.eof_received)
        self.loop.call_soon(self.lose)

    @property
    def owed(self) -> list[Sent]:
        """Whole requests without an answer."""
        return [sent for sent in self.requests.values() if sent.answer is None and sent.end <= self.sent_bytes]

    # --- the transport ---

    def arrive(self) -> None:
        if self.arrived and not self.is_paused and not self.is_over:
            memory = self.connection.get_buffer(-1)
            count = min(len(memory), len(self.arrived))
            memory[:count] = self.arrived[:count]
            self.arrived = self.arrived[count:]
            self.connection.buffer_updated(count)
            self.loop.call_soon(self.arrive)

    def lose(self) -> None:
        if not self.is_gone:
            is_slow, self.is_gone = bool(self.unsent or not self.requests), True
            self.machine.expect(self.has_left or is_slow or self.machine.ending is not None, "no good client is closed")
            self.connection.connection_lost(None)

    def write(self, data: Any) -> None:
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            answer, data = parse_response(data[:size]), data[size:]
            sent = self.requests[answer.request_id]
            self.machine.expect(sent.answer is None and sent.end <= self.sent_bytes, "one answer, to a whole request")
            sent.answer = answer
            self.machine.check_answer(sent, answer)

    def close(self) -> None:
        self.is_over = True
        self.loop.call_soon(self.lose)

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        self.loop.call_soon(self.arrive)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Clients read at once."""


class Assigned(AllTopics):
    """``served`` has the topics of this broker."""

    served: frozenset[str] = frozenset(TOPICS)

    def serves(self, topic: str) -> bool:
        return topic in self.served


class BrokerMachine(RuleBasedStateMachine):
    """The sets and counts of Messages are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SteppedLoop()
        self.loop.set_exception_handler(lambda _, context: self.problems.append(repr(context)))
        self.threads = Threads(self.loop)
        self.assignment = Assigned(lambda: self.broker.address, serves_reads=False)
        self.store = ScriptedStore(MemoryObjectStore())
        self.store.change("put", "??/default/topics/*", change=self.put_batch)
        self.store.on("put", "*/queues/*", self.append).on("put", "*/queues/*", self.appended, moment="after")
        self.store.on("get", "*/topics/*.json", self.look_up)
        self.numbers = count()
        self.problems: list[str] = []
        self.messages: list[Sent] = []
        self.sends, self.failures, self.copies = Counter[Any](), Counter[Any](), Counter[Any]()
        self.moves, self.lanes = Counter[str](), dict[bytes, str]()
        self.failed_lookups = set[str]()
        self.created_s = {"orders": -ALL_S}
        self.fate: Fate = "stored"
        self.writing: list[ProducerRequest] = []
        self.asked_s = 0.0

    @initialize(by_producer=st.booleans())
    def begin(self, *, by_producer: bool) -> None:
        self.by_producer = by_producer
        topics = topics_on(self.store, batch_messages="3", batch_bytes="150000", message_bytes="1024", batch_ms="1000")
        own = topics.settings.section(BatchBrokerSettings)
        changes = {"buffer_bytes": BUFFER_BYTES, "batch_by": "producer" if by_producer else "any"}
        self.topics = Topics(self.store, topics.settings.with_section(own.model_copy(update=changes)))
        self.topics.create("orders", 2)
        self.start()

    def start(self) -> None:
        directory = Directory(StoreTopics(self.topics), monotonic=self.loop.time)
        self.broker = Broker(self.topics, assignment=self.assignment, directory=directory)
        self.loop.run_until_complete(self.broker.start())
        directory.refresh()
        self.ending: asyncio.Task[None] | None = None
        self.stored_s: dict[ProducerRequest, float] = {}
        # Messages that were acknowledged on receipt, by topic, and those of them without records.
        self.taken, self.empty = dict[str, set[ProducerRequest]](), dict[str, set[ProducerRequest]]()
        self.clients = [Client(self, str(number)) for number in range(3)]

    def step(self, seconds: float = 0.0) -> None:
        """Let the broker run, and start another one after it has ended."""
        self.loop.run_for(seconds)
        if self.ending is not None and self.ending.done():
            self.ending.result()
            self.expect(all(client.is_gone for client in self.clients), "all connections end")
            while self.threads.waiting:
                self.threads.run(0)
            self.loop.run_for(2 * BATCH_S)
            self.start()
            self.loop.run_for()

    def expect(self, holds: bool, what: str) -> None:
        """Note a broken promise, because the broker would handle an error that is raised here."""
        if not holds:
            self.problems.append(what)

    # --- the store, whose operations end as ``fate`` says ---

    def put_batch(self, body: bytes) -> bytes:
        headers = [cast("MessageHeader", header) for _, header in headers_in(body, "a batch")]
        now_s, self.writing = self.loop.time(), [cast("ProducerRequest", header.request) for header in headers]
        self.expect(len(set(self.writing)) == len(self.writing), "a Message is in a batch once")
        for message in self.writing:
            stored_s = self.stored_s.get(message, -ALL_S)
            self.expect(now_s >= stored_s + WINDOW_S, "a stored Message is not stored again")
        for address in {message.address for message in self.writing}:
            own = [each.request_id for each in self.writing if each.address == address and self.sends[each] == 1]
            self.expect(own == sorted(own), "a batch has a producer's Messages in order")
        if self.fate == "refused":
            raise AccessDeniedError("refused")
        if self.fate == "crash":
            raise ValueError("crash")
        return body

    def append(self, _: Operation) -> None:
        if self.fate == "orphan":
            raise AccessDeniedError("refused")

    def appended(self, operation: Operation) -> None:
        partition = operation.keys[0].split("/")[-2]
        self.copies.update(self.writing)
        for message in self.writing if self.by_producer else []:
            self.expect(self.lanes.setdefault(message.address, partition) == partition, "one partition a producer")
        if self.fate == "answer lost":
            raise AccessDeniedError("the answer is lost")

    def look_up(self, operation: Operation) -> None:
        if self.fate != "stored":
            self.failed_lookups.add(operation.keys[0].rpartition("/")[2].removesuffix(".json"))
            raise AccessDeniedError("refused") if self.fate == "refused" else ValueError("crash")

    # --- rules ---

    @rule(
        number=CLIENTS,
        kinds=st.lists(KINDS, min_size=1, max_size=4),
        size=st.sampled_from([1, 1, 1000, 70_000]),
        topic=st.sampled_from(["orders", "orders", "orders", "later"]),
        left_out=st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.6]),
        no_acks=st.booleans(),
    )
    def send(self, number: int, kinds: list[Kind], size: int, topic: str, left_out: float, no_acks: bool) -> None:
        for kind in kinds:
            address, request_id = bytes([number]), len(self.messages)
            data = message_of([] if kind == "empty" else [bytes(size)], request_id, address=address)
            write = write_of(data, topic, no_acks=no_acks)
            if kind == "damaged":
                write = WriteRequest(topic, write.crc ^ 1, data, no_acks)
            message = ProducerRequest(address, 1_700_000_000_000, request_id)
            self.messages.append(Sent(write, message, kind))
            self.transmit(number, request_id, left_out)
        self.step()

    def transmit(self, number: int, which: int, left_out: float) -> None:
        sent = self.messages[which]
        self.sends[sent.message] += 1
        if self.clients[number].is_over:
            self.reconnect(number)
        self.clients[number].send(replace(sent, moves=self.moves[sent.write.topic]), left_out)

    @precondition(lambda self: self.messages)
    @rule(number=CLIENTS, which=st.integers(0, 4), left_out=st.sampled_from([0.0, 0.0, 0.6]))
    def send_again(self, number: int, which: int, left_out: float) -> None:
        """Repeat one of the last Messages."""
        self.transmit(number, -1 - which % len(self.messages), left_out)
        self.step()

    @rule(number=CLIENTS)
    def send_the_rest(self, number: int) -> None:
        self.clients[number].go_on()
        self.step()

    @rule(number=CLIENTS)
    def reconnect(self, number: int) -> None:
        self.clients[number].leave()
        self.step()
        self.clients[number] = Client(self, str(number))
        self.step()

    @rule(
        seconds=st.sampled_from([0.0, BATCH_S]),
        numbers=st.lists(st.integers(0, 9), min_size=1, max_size=4),
        fate=FATES,
        repeats=st.booleans(),
    )
    def work(self, seconds: float, numbers: list[int], fate: Fate, *, repeats: bool) -> None:
        """Let time pass, then run some work of the threads. Clients may repeat the Messages that were written last."""
        self.step(seconds)
        for number in numbers:
            if self.threads.waiting:
                self.run(number, fate)
        for message in self.writing if repeats else []:
            self.transmit(message.address[0], message.request_id, 0.0)
        self.step()

    def run(self, number: int, fate: Fate) -> None:
        self.fate, self.writing = fate, []
        self.threads.run(number)
        if fate == "stored":
            self.stored_s |= dict.fromkeys(self.writing, self.loop.time())
        else:
            self.failures.update(self.writing)
        self.fate = "stored"
        self.step()

    @rule(seconds=st.sampled_from([0.3, BATCH_S, 11.0, LEAST_PACE_S + 6, WINDOW_S]))
    def wait(self, seconds: float) -> None:
        self.step(seconds)

    @rule(topic=st.sampled_from(TOPICS))
    def move(self, topic: str) -> None:
        self.assignment.served ^= {topic}
        self.moves[topic] += 1

    @precondition(lambda self: "later" not in self.created_s)
    @rule(is_listed=st.booleans())
    def create(self, *, is_listed: bool) -> None:
        self.topics.create("later", 2)
        self.created_s["later"] = self.loop.time()
        if is_listed:
            self.broker.directory.refresh()

    @precondition(lambda self: self.ending is None and len(self.messages) > 2)
    @rule(how=st.sampled_from(["drain", "hand over", "abandon"]), seconds=st.sampled_from([0.0, 3.0, ALL_S]))
    def end(self, how: str, seconds: float) -> None:
        self.ending = self.loop.create_task(self._end(how, self.loop.time() + seconds))
        self.step()

    async def _end(self, how: str, end_s: float) -> None:
        if how == "abandon":
            await self.broker.abandon()
            return
        if how == "hand over":
            last_s = min(end_s, self.loop.time() + 10.0)
            self.assignment.served = frozenset()
            self.moves.update(TOPICS)
            await self.broker.hand_over(lambda: True, end_s - self.loop.time())
            if self.loop.time() < last_s:
                self.expect(self.loop.time() >= self.asked_s + 1, "redirected clients have a second to ask")
                expecting = [client for client in self.clients if client.connection.expects_to_write]
                self.expect(all(client.is_gone for client in expecting), "all writing clients were redirected")
        served = [client for client in self.clients if not client.arrived and not client.is_paused]
        owed = {id(sent): client for client in served for sent in client.owed}
        await self.broker.drain(end_s - self.loop.time())
        if self.loop.time() < end_s:
            owing = [owed[id(sent)] for client in served for sent in client.owed if id(sent) in owed]
            self.expect(all(client.has_left for client in owing), "a drain answers")
            self.expect(
                all(self.copies[each] or self.failures[each] for each in set[Any]().union(*self.taken.values())),
                "a drain stores",
            )
            self.expect((self.broker.room.taken, self.broker.room.waiting) == (0, 0), "a drain empties the buffer")

    # --- promises ---

    def check_answer(self, sent: Sent, answer: Response) -> None:
        topic, message, now_s = sent.write.topic, sent.message, self.loop.time()
        is_served = self.assignment.serves(topic)
        self.expect(answer.code is not Code.OK or sent.kind != "damaged", "damaged Messages are refused")
        match answer.code:
            case Code.REDIRECT:
                self.expect(not is_served, "only what has moved is redirected")
                self.asked_s = now_s
            case Code.NOT_FOUND:
                self.expect(now_s <= self.created_s.get(topic, math.inf) + 2, "a topic that exists is found")
            case Code.REQUEST_FAILED:
                self.expect(topic in self.failed_lookups or self.failures[message] > 0, "what failed has failed")
            case Code.BAD_REQUEST:
                self.expect(sent.kind == "damaged", "good Messages are taken")
            case Code.OK if sent.kind == "message" and not sent.write.no_acks:
                self.expect(self.copies[message] > 0, "an acknowledged Message is stored")
            case Code.OK:
                self.expect(is_served or sent.moves != self.moves[topic], "a topic that moved is redirected")
                (self.empty if sent.kind == "empty" else self.taken).setdefault(topic, set()).add(message)
            case _:
                self.problems.append(f"an answer {answer}")

    @invariant()
    def no_promise_is_broken(self) -> None:
        room = self.broker.room
        assert 0 <= room.taken <= room.size
        has_part = any(client.unsent for client in self.clients)
        assert not room.waiting or self.threads.waiting or has_part, "the buffer waits for itself"
        assert self.problems == []

    def settle(self) -> None:
        """Let all work succeed. Then nothing is left to do."""
        for _ in range(100):
            for client in self.clients:
                client.go_on()
            self.step()
            while self.threads.waiting:
                self.run(0, "stored")
            self.step(BATCH_S)
            if not self.threads.waiting and self.ending is None and not any(client.arrived for client in self.clients):
                break
        self.no_promise_is_broken()
        room = self.broker.room
        assert (room.taken, room.waiting, len(self.threads.waiting)) == (0, 0, 0)
        for client in self.clients:
            assert client.is_over or not client.owed, "each request has an answer"

    def teardown(self) -> None:
        try:
            self.settle()
            self.assignment.served = frozenset(TOPICS)
            for topic in self.empty:
                self.send(0, ["message"], 1, topic, 0.0, no_acks=True)
            self.settle()
            assert set[Any]().union(*self.empty.values()) <= self.check_store(), "requests without records are told"
        finally:
            self.loop.run_until_complete(self.broker.abandon())
            self.loop.run_for()
            self.threads.patched.undo()
            self.loop.close()

    def check_store(self) -> set[ProducerRequest]:
        """Compare the stored batches with the model. Return the requests without records."""
        copies, empty = Counter[Any](), set[ProducerRequest]()
        for name, partition in product(self.created_s, range(2)):
            with BatchLog(self.topics, self.topics.get(name)) as log:
                for batch in log.walk(partition):
                    copies.update(cast("MessageHeader", header).request for _, header in log.headers(batch))
                    facts = cast("BatchFacts", batch.notification.facts)
                    empty.update(replace(facts, producers=facts.empty).requests(1 << 30))
        assert copies == self.copies
        return empty


TestBroker = pytest.mark.slow(BrokerMachine.TestCase)
TestBroker.settings = settings(max_examples=examples(600), stateful_step_count=40)


@pytest.mark.parametrize("others", ["held", "incomplete", "behind a write"])
def test_a_full_buffer_never_waits_for_an_open_batch(others: str) -> None:
    """A large Message waits for the memory of two others, which are in an open batch then, or later."""
    machine = BrokerMachine()
    machine.begin(by_producer=False)
    send = partial(machine.send, topic="orders", no_acks=False)
    send(0, ["message"], 1, left_out=0.0)
    machine.settle()
    if others == "behind a write":
        send(0, ["message"] * 3, 1, left_out=0.0)
    for number in (0, 1):
        send(number, ["message"], 70_000, left_out=0.6 if others == "incomplete" else 0.0)
    send(2, ["message"], 70_000, left_out=0.0)
    assert (machine.broker.room.waiting, len(machine.threads.waiting)) == (1, int(others != "incomplete"))
    for number in (0, 1):
        machine.send_the_rest(number)
    if others == "behind a write":
        machine.run(0, "stored")
    machine.no_promise_is_broken()
    machine.teardown()
