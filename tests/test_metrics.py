"""Counting: the time of a call, results that are not errors, forks, and the exporter's life."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from dataclasses import fields

import pytest
from prometheus_client import CollectorRegistry

from tests.support.fresh_python import run_fresh
from tests.support.paths import REPOSITORY
from tests.support.servers.process import free_port
from tieredstore import metrics
from tieredstore.errors import (
    AccessDeniedError,
    ManifestCorruptError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RangeNotSatisfiableError,
    SegmentNotFoundError,
    StoreError,
    StoreThrottledError,
    StoreUnavailableError,
)
from tieredstore.metrics import counting, exposition
from tieredstore.remote.fetch.chunk_cache import CacheStats
from tieredstore.remote.statistics import FetchStats

DOCUMENT = REPOSITORY / "docs" / "reference" / "metrics.md"


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list whose only item is the clock's time in seconds."""
    now = [0.0]
    monkeypatch.setattr(counting, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreThrottledError("x"), "throttled"), (StoreUnavailableError("x"), "transient"), (AccessDeniedError("x"),
        "denied"), (ObjectNotFoundError("x"), "missing"), (SegmentNotFoundError("x"), "missing"),
        (PreconditionFailedError("x"), "precondition"), (ManifestCorruptError("x"), "corrupt"),
        (RangeNotSatisfiableError("x"), "other"), (StoreError("x"), "other"), (OSError("x"), "other"),
        (KeyboardInterrupt(), "other"),
    ],
)  # fmt: skip
def test_every_error_has_one_kind(error: BaseException, kind: str) -> None:
    assert counting.kind_of(error) == kind


def test_a_call_takes_its_time_without_what_was_spent_elsewhere(clock: list[float]) -> None:
    with counting.store_call("time-of-a-call", "put") as call:
        clock[0] += 7.0
        call.elsewhere_s += 4.5
    assert sample("tieredstore_store_request_seconds_sum", store="time-of-a-call", operation="put") == 2.5
    assert sample("tieredstore_store_request_seconds_count", store="time-of-a-call", operation="put") == 1


def test_a_call_that_fails_is_timed_and_counted_as_its_kind(clock: list[float]) -> None:
    def fail() -> None:
        with counting.store_call("a-failed-call", "get"):
            clock[0] += 3.0
            raise AccessDeniedError("no")

    with pytest.raises(AccessDeniedError):
        fail()
    assert sample("tieredstore_store_request_seconds_sum", store="a-failed-call", operation="get") == 3.0
    assert sample("tieredstore_store_errors_total", store="a-failed-call", operation="get", kind="denied") == 1


def test_a_generator_that_is_closed_early_is_a_call_without_an_error() -> None:
    def listing() -> Generator[int, None, None]:
        with counting.store_call("closed-early", "list"):
            yield 1
            yield 2

    taken = listing()
    next(taken)
    taken.close()
    assert sample("tieredstore_store_request_seconds_count", store="closed-early", operation="list") == 1
    assert sample("tieredstore_store_errors_total", store="closed-early", operation="list", kind="other") == 0


@pytest.fixture
def exported() -> list[counting.Snapshots]:
    return []


@pytest.fixture
def registry(exported: list[counting.Snapshots]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(exposition.SnapshotsCollector(exported))
    return registry


def test_sources_add_up_and_a_closed_one_leaves_its_totals_but_not_its_levels(
    registry: CollectorRegistry, exported: list[counting.Snapshots]
) -> None:
    sums = counting.Snapshots("test_sources", among=exported)
    one, other = {"hits": 3, "entries": 2}, {"hits": 10, "entries": 5, "wait_seconds": 0.25}
    remove = sums.add(lambda: one)
    sums.add(lambda: other)

    def found() -> list[float | None]:
        names = ("hits_total", "entries", "wait_seconds_total")
        return [registry.get_sample_value(f"test_sources_{name}") for name in names]

    assert found() == [13, 7, 0.25]
    one["hits"] = 4
    remove()
    assert found() == [14, 5, 0.25]
    one["hits"] = 100
    remove()
    assert found() == [14, 5, 0.25]


def test_totals_and_levels_have_the_types_that_prometheus_needs(
    registry: CollectorRegistry, exported: list[counting.Snapshots]
) -> None:
    counting.Snapshots("test_types", among=exported).add(
        lambda: {"hits": 1, "evicted_bytes": 2, "entries": 3, "bytes": 4}
    )
    assert {metric.name: metric.type for metric in registry.collect()} == {
        "test_types_hits": "counter",
        "test_types_evicted_bytes": "counter",
        "test_types_entries": "gauge",
        "test_types_bytes": "gauge",
    }


def test_the_document_names_every_metric_and_no_other() -> None:
    listed = DOCUMENT.read_text()
    names = {metric.name for metric in metrics.REGISTRY.collect()}
    fetch = {f"tieredstore_fetch_{field.name}" for field in fields(FetchStats)}
    cache = {f"tieredstore_chunk_cache_{field.name}" for field in fields(CacheStats)}
    # Metrics with these beginnings exist only if this process made a consumer, producer or broker.
    seldom: set[str] = set()
    for beginning in (
        "tieredstore_consumer_",
        "tieredstore_broker_",
        "tieredstore_pubsub_producer_",
        "tieredstore_pubsub_consumer_",
        "tieredstore_pubsub_audit_",
    ):
        of_these = {name for name in names if name.startswith(beginning)}
        row = next(line for line in listed.splitlines() if line.startswith(f"`{beginning}…`"))
        assert {name for name in of_these if f"`{name.removeprefix(beginning)}`" not in row} == set()
        seldom |= of_these
    assert {name for name in names - fetch - cache - seldom if f"`{name}`" not in listed} == set()
    rows = {"tieredstore_fetch_": FetchStats, "tieredstore_chunk_cache_": CacheStats}
    for beginning, counted in rows.items():
        row = next(line for line in listed.splitlines() if line.startswith(f"`{beginning}…`"))
        assert {field.name for field in fields(counted)} == set(re.findall(r"`([a-z_]+)`", row))
    for name in re.findall(r"`(tieredstore_\w+?)(?:_total)?[`{]", listed):
        assert name in names | fetch | cache


def test_a_forked_child_counts_from_zero_and_hangs_on_no_lock_of_its_parent() -> None:
    # Each lock is held during the fork, as a thread that is just counting would hold it.
    output = run_fresh("""
        import contextlib, os, signal, warnings
        from tieredstore import metrics
        from tieredstore.metrics import counting

        warnings.simplefilter("ignore", DeprecationWarning)
        counting.RETRIES.add(5, "transient")
        counting.SEGMENT_DELETE_BYTES.add(7)
        counting.FETCH.add(lambda: {"requests": 9})
        with contextlib.ExitStack() as held:
            for lock in (
                metrics.REGISTRY._lock, counting.RETRIES._lock, counting._REQUESTS._lock,
                counting.SEGMENT_DELETE_BYTES._lock, counting.FETCH._lock,
            ):
                held.enter_context(lock)
            child = os.fork()
            if not child:
                signal.alarm(20)
                with counting.store_call("memory", "get"):
                    counting.RETRIES.add(1, "transient")
                counting.SEGMENT_DELETE_BYTES.add(1)
                print(*(metrics.REGISTRY.get_sample_value(*name) for name in (
                    ("tieredstore_store_retries_total", {"kind": "transient"}),
                    ("tieredstore_segment_delete_bytes_total",),
                    ("tieredstore_store_request_seconds_count", {"store": "memory", "operation": "get"}),
                    ("tieredstore_fetch_requests_total",),
                )), flush=True)
                os._exit(0)
            ended = os.waitpid(child, 0)[1]
        assert ended == 0, ended
        print(metrics.REGISTRY.get_sample_value("tieredstore_segment_delete_bytes_total"))
    """)
    assert output.split() == ["1.0", "1.0", "1.0", "9", "7.0"]


def test_counters_and_histograms_are_exported_as_prometheus_s_own() -> None:
    output = run_fresh("""
        import re
        from prometheus_client import generate_latest
        from tieredstore import metrics
        from tieredstore.metrics import counting

        for seconds in (0.0001, 0.002, 400):
            counting._REQUESTS.observe(seconds, "s3", "get")
        counting.count_objects("s3", "up", 2, 30)
        names = ["tieredstore_store_request_seconds" + what for what in ("_bucket", "_count", "_sum", "_created")]
        for asked in (names, ["tieredstore_store_bytes_total"], ["tieredstore_segment_copy_errors_total"]):
            text = generate_latest(metrics.REGISTRY.restricted_registry(asked)).decode()
            print(re.sub(r"(_created{.*}) .*", r"\\1 TIME", text))
    """)
    lines = [line for line in output.splitlines() if line and not line.startswith("#")]
    buckets = dict.fromkeys(("0.0001", "0.001"), 1) | dict.fromkeys(
        ("0.003", "0.01", "0.03", "0.1", "0.3", "1.0", "3.0", "10.0", "30.0", "100.0", "300.0"), 2
    )
    name, labels = "tieredstore_store_request_seconds", 'operation="get",store="s3"'
    assert lines == [
        *(f'{name}_bucket{{le="{bound}",{labels}}} {count}.0' for bound, count in buckets.items()),
        f'{name}_bucket{{le="+Inf",{labels}}} 3.0',
        f"{name}_count{{{labels}}} 3.0",
        f"{name}_sum{{{labels}}} 400.0021",
        f"{name}_created{{{labels}}} TIME",
        'tieredstore_store_bytes_total{how="up",store="s3"} 30.0',
        "tieredstore_segment_copy_errors_total 0.0",
    ]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def served(port: int) -> Iterator[str]:
    stop = metrics.serve_metrics(port)
    yield f"http://127.0.0.1:{port}/metrics"
    stop()
    stop()


def test_served_metrics_are_those_counted(served: str) -> None:
    with counting.store_call("served", "head"):
        pass
    with urllib.request.urlopen(served, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    assert 'tieredstore_store_request_seconds_count{operation="head",store="served"} 1.0' in lines
    assert "# TYPE tieredstore_store_request_seconds histogram" in lines


def test_only_this_machine_is_served_by_default(served: str, port: int) -> None:
    # 127.0.0.2 is a loopback address too. It would answer only if the server were bound to all addresses.
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.2:{port}/metrics", timeout=60)


def test_a_port_that_is_taken_is_an_error(served: str, port: int) -> None:
    with pytest.raises(OSError, match="in use"):
        metrics.serve_metrics(port)


@pytest.mark.slow
def test_a_forked_child_does_not_keep_its_parent_s_port(port: int) -> None:
    run_fresh(
        """
        import os, signal, sys, warnings
        from tieredstore import metrics

        warnings.simplefilter("ignore", DeprecationWarning)
        stop = metrics.serve_metrics(int(sys.argv[1]))
        ready, told = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(20)
            stop()
            os.write(told, b"x")
            signal.pause()
        os.read(ready, 1)
        stop()
        metrics.serve_metrics(int(sys.argv[1]))()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    """,
        port,
    )
