"""Batches through a store, for ``bench_pubsub``: publishing, reading, latency, requests, cost, memory."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import interleaved, to_the_limit
from benchmarks.process_tree import ProcessTree
from tests.support.network.fault_proxy import FaultProxy
from tests.support.paths import REPOSITORY
from tests.support.pubsub.pubsub_topics import topics_on
from tests.support.servers.minio import start_minio
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.stores.doubles import DelegatingObjectStore
from tieredstore.backends.base import Body, ObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.s3.options import AccessKeys, Compatibility, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import ObjectNotFoundError
from tieredstore.ops.cost.prices import read_prices
from tieredstore.pubsub.consume.consumer import BatchConsumer
from tieredstore.pubsub.produce.producer import BatchProducer
from tieredstore.pubsub.queue.topics import BatchLog, Topics
from tieredstore.pubsub.upkeep.cost import topic_cost, topic_facts

MIB: Final = 1 << 20
GIB: Final = 1 << 30
BATCH: Final = 16 * MIB
RECORD: Final = 10_000
ENTRY: Final = 700
LAG: Final = 1500  # records of 100,000 bytes
PUBLISH_TARGET = BACKFILL_TARGET = 0.85
PUTS_A_GIB = GETS_A_GIB = 72
SAVED_TARGET = 0.8
THROUGHPUT_MIB_S: Final = 20.0
RETENTION_DAYS: Final = 3.0
PRICES: Final = REPOSITORY / "examples" / "prices.toml"


@contextmanager
def bucket(server: S3Server, url: str | None = None) -> Generator[ObjectStore]:
    """Create a bucket on the server, accessed directly or through a proxy."""
    options = S3Options(
        server.make_bucket(),
        region=REGION,
        endpoint_url=url or server.endpoint_url,
        path_style=True,
        compatibility=Compatibility.AWS,
        credentials=AccessKeys(server.access_key, server.secret_key),
    )
    store = S3ObjectStore(options)
    try:
        yield store
    finally:
        store.close()


def publish(topics: Topics, topic: str, value: bytes, count: int) -> None:
    with BatchProducer(topics, topic) as producer:
        for _ in range(count):
            producer.send(value)


def read_all(topics: Topics, topic: str, count: int) -> None:
    rows = 0
    with BatchConsumer(topics, topic) as consumer:
        while rows < count:
            batch = consumer.poll(60.0)
            if batch is None:
                raise TimeoutError(f"{rows} of {count} records came within a minute")
            rows += batch.num_rows


def measure_throughput(mib: int, runs: int) -> dict[str, object]:
    """Compare publishing with plain PUTs, and reading with plain GETs of the same objects, in a local MinIO.

    Plain requests are the upper limit of speed. They include the server's work, and the store client's checksums of a
    body, but no conditions, queue or records. Both sides have the same number of concurrent requests. Processor time is
    that of this process and of the server, which share the machine. ``bare requests`` are plain requests together with
    those that our guarantees need: each PUT is conditional, and is followed by a PUT of a queue entry and a GET of the
    queue's start; each GET of a batch follows a GET of the batch's entry.
    """
    tree = ProcessTree(os.getpid())

    def processor_seconds() -> float:
        return sum(tree.cpu_seconds())

    count = mib * MIB // RECORD
    value = os.urandom(RECORD)
    with start_minio() as server, bucket(server) as store, ThreadPoolExecutor(8) as pool:
        topics = topics_on(store, compression="none", batch_ms="60000")
        topics.create("written")
        topics.create("read")
        publish(topics, "read", value, count)
        keys = [info.key for info in store.list() if "/topics/read/" in info.key and "!tieredstore" not in info.key]
        bodies = [store.get(key) for key in keys]
        entry = os.urandom(ENTRY)
        store.put("plain/entry", entry)

        def published() -> None:
            publish(topics, "written", value, count)

        def put(body: bytes) -> None:
            store.put(f"plain/{uuid.uuid4().hex}", body)

        def get(key: str) -> int:
            return len(store.get(key))

        def get_as_told(key: str) -> int:
            store.get_small("plain/entry", ENTRY)
            return get(key)

        def put_as_promised(body: bytes) -> None:
            mark = uuid.uuid4().hex
            store.put_once(f"plain/{mark}", body, mark)
            store.put(f"plain/{mark}/entry", entry, if_absent=True)
            with suppress(ObjectNotFoundError):
                store.get_small("plain/start", ENTRY)

        def all_put(by: Callable[[bytes], None]) -> None:
            with ThreadPoolExecutor(topics.batches.uploads) as uploads:
                list(uploads.map(by, bodies))

        writing = interleaved(
            {
                "publish": published,
                "plain PUTs": lambda: all_put(put),
                "bare requests": lambda: all_put(put_as_promised),
            },
            runs,
            processor_seconds=processor_seconds,
        )
        reading = interleaved(
            {
                "backfill": lambda: read_all(topics, "read", count),
                "plain GETs": lambda: list(pool.map(get, keys)),
                "bare requests": lambda: list(pool.map(get_as_told, keys)),
            },
            runs,
            processor_seconds=processor_seconds,
        )
    return {
        "MiB": mib,
        "record_bytes": RECORD,
        "MB_s": {
            name: round(mib * 1.048576 / statistics.median(run.seconds for run in seen))
            for name, seen in (reading | writing).items()
            if name != "bare requests"
        },
        "publish": {
            **to_the_limit(writing, "publish", ("plain PUTs",)),
            "target": PUBLISH_TARGET,
            "bare requests alone": to_the_limit(writing, "bare requests", ("plain PUTs",)),
        },
        "backfill": {
            **to_the_limit(reading, "backfill", ("plain GETs",)),
            "target": BACKFILL_TARGET,
            "bare requests alone": to_the_limit(reading, "bare requests", ("plain GETs",)),
        },
    }


def measure_requests(mib: int, idle_s: float) -> dict[str, object]:
    """Count requests by a proxy before the server: of published batches, of a reader, and of an idle topic with one
    reader.
    """
    count, value = mib * MIB // RECORD, os.urandom(RECORD)
    with start_minio() as server, FaultProxy(server.endpoint_url) as proxy, bucket(server, proxy.url) as store:
        topics = topics_on(store, compression="none", batch_ms="60000")
        topics.create("orders")

        def requests() -> Counter[str]:
            kinds = Counter(f"{seen.method} {_kind(seen.path)}" for seen in list(proxy.seen))
            proxy.seen.clear()
            return kinds

        requests()
        publish(topics, "orders", value, count)
        written = requests()
        facts = topic_facts(BatchLog(topics, topics.get("orders")), time.time_ns() // 1_000_000)
        requests()
        with BatchConsumer(topics, "orders") as consumer:
            rows = 0
            while rows < count:
                batch = consumer.poll(60.0)
                rows += 0 if batch is None else batch.num_rows
            read = requests()
            end_s = time.monotonic() + 12.0  # wait, because readers poll less often after ten idle seconds
            while time.monotonic() < end_s:
                consumer.poll(0.5)
            requests()
            end_s = time.monotonic() + idle_s
            while time.monotonic() < end_s:
                consumer.poll(0.5)
            idle = requests()
        prices = read_prices(PRICES)
        use = replace(prices.pubsub, throughput_mib_s=THROUGHPUT_MIB_S, retention_days=RETENTION_DAYS)
        prices = replace(prices, pubsub=use)
        cost = topic_cost(facts, prices, time.time_ns() // 1_000_000, BATCH)
    stored_gib = facts.stored_size / GIB
    return {
        "PUTs_of_objects_a_GiB": {
            "is": written["PUT object"] / stored_gib,
            "target": PUTS_A_GIB,
            "hedges": written["PUT object"] - facts.batches,
        },
        "stored_GiB": round(stored_gib, 3),
        "entries_a_batch": {"is": written["PUT queue"] / facts.batches, "target": 1},
        "GETs_of_objects_a_GiB": {"is": read["GET object"] / stored_gib, "target": GETS_A_GIB},
        "idle": {
            "PUTs": sum(number for kind, number in idle.items() if kind.startswith("PUT")),
            "GETs_a_second": {"is": idle["GET queue"] / idle_s, "target": 0.5},
        },
        "cost_below_kafka": {
            "is": cost.saved_share,
            "target": SAVED_TARGET,
            "MiB_s": THROUGHPUT_MIB_S,
            "readers": use.readers,
            "retention_days": RETENTION_DAYS,
        },
    }


def _kind(path: str) -> str:
    return "queue" if "/queues/" in path else "own" if "tieredstore/pubsub" in path else "object"


class SlowPuts(DelegatingObjectStore):
    """A store with slow PUTs, as on a cloud's bad day: 60 ms at the median, 400 ms at p99, and one in 500 hangs."""

    def __init__(self, seed: int) -> None:
        super().__init__(MemoryObjectStore())
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.puts = self.hung = 0

    def put(self, key: str, body: Body, *, if_absent: bool = False) -> None:
        with self._lock:
            self.puts += 1
            hangs = self.puts % 500 == 40  # the first PUT that hangs is an early one, so that a short run has one
            self.hung += hangs
            # A log-normal distribution with median 60 ms and 99th percentile 400 ms.
            delay_s = 0.060 * self._random.lognormvariate(0, 0.8155)
        if hangs:
            time.sleep(30.0)
        time.sleep(delay_s)
        super().put(key, body, if_absent=if_absent)


def measure_latency(seconds: float, batch_ms: int, targets: dict[str, float]) -> dict[str, object]:
    """Measure the time from ``send`` to ``poll``, with records of 10,000 bytes at 20 MB/s."""
    store = SlowPuts(batch_ms)
    topics = topics_on(store, compression="none", batch_ms=str(batch_ms))
    topics.create("orders", 2)
    rate, count = 2000, int(2000 * seconds)
    value = os.urandom(RECORD)

    def send() -> None:
        with BatchProducer(topics, "orders") as producer:
            begin_s = time.monotonic()
            for number in range(count):
                ahead_s = begin_s + number / rate - time.monotonic()
                if ahead_s > 0.005:
                    time.sleep(ahead_s)
                producer.send(value)

    sender = threading.Thread(target=send)
    taken_ms: list[float] = []
    with BatchConsumer(topics, "orders") as consumer:
        sender.start()
        while len(taken_ms) < count:
            batch: Any = consumer.poll(60.0)
            now_ms = time.time_ns() / 1_000_000
            taken_ms += [now_ms - sent_ms for sent_ms in batch.column("timestamp").to_pylist()]
        sender.join()
    cut = statistics.quantiles(taken_ms, n=1000, method="inclusive")
    seen = {"p50": cut[499], "p99": cut[989], "p99.9": cut[998]}
    return {
        "batch_ms": batch_ms,
        "puts": store.puts,
        "hung": store.hung,
        "ms": {name: {"is": round(ms), "target": targets.get(name)} for name, ms in seen.items()},
    }


class Forgetful(DelegatingObjectStore):
    """A store that deletes each batch after its first read."""

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        data = super().get(key, start, stop)
        self._forget(key)
        return data

    def get_into(self, key: str, start: int, buffer: bytearray | memoryview) -> None:
        super().get_into(key, start, buffer)
        self._forget(key)

    def _forget(self, key: str) -> None:
        if "!tieredstore" not in key:
            self.delete([key])


def measure_memory(gib: float) -> dict[str, object]:
    """Measure in a separate process, because memory left over from other benchmarks would hide the growth."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as one:
        return one.submit(_memory_of, gib).result()


def _memory_of(gib: float) -> dict[str, object]:
    """Write and read records; return the process's memory after each eighth of them."""
    topics = topics_on(Forgetful(MemoryObjectStore()), compression="none")
    topics.create("orders")
    value, count = os.urandom(100_000), int(gib * GIB / 100_000)
    levels: list[int] = []
    with BatchProducer(topics, "orders") as producer, BatchConsumer(topics, "orders") as consumer:
        rows = 0
        for number in _sent(producer, value, count):
            # Keep few records unread, because they are in the store, and the store is in this process's memory.
            while number % 20 == 0 and (batch := consumer.poll(60.0 if number - rows > LAG else 0.0)) is not None:
                rows += batch.num_rows
            if number % (count // 8) == count // 8 - 1:
                levels.append(_held_mib())
        producer.flush()
        while rows < count:
            batch = consumer.poll(60.0)
            rows += 0 if batch is None else batch.num_rows
    half = len(levels) // 2
    return {
        "GiB": gib,
        "MiB_at_each_eighth": levels,
        "growth_of_the_second_half": max(levels[half:]) - max(levels[:half]),
    }


def _sent(producer: BatchProducer, value: bytes, count: int) -> Iterator[int]:
    for number in range(count):
        producer.send(value)
        yield number


def _held_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // MIB
