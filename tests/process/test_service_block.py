"""The threads of a service, run within the test's process, without signals."""

from __future__ import annotations

import gc
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.servers.process import free_port
from tests.support.service_process import fetched, within
from tests.support.waiting import wait_until
from tieredstore.errors import ConfigError
from tieredstore.process.service import Service
from tieredstore.process.stopping import Stop


def idle(stop: Stop) -> None:
    while not stop.wait(60):
        pass


Threads: TypeAlias = Callable[[], set[str]]


@pytest.fixture
def threads() -> Threads:
    """Return a function that names the threads started since the test began. Older ones belong to other tests."""
    gc.collect()
    before = frozenset(threading.enumerate())
    return lambda: {thread.name for thread in threading.enumerate() if thread not in before}


def sockets_at(port: int) -> set[str]:
    """Return the process's open sockets of a local port. Other sockets belong to clients of other tests."""
    links: set[str] = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.add(str(descriptor.readlink()))
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return links & {f"socket:[{each[9]}]" for each in connections if each[1].endswith(f":{port:04X}")}


def test_a_service_that_has_stopped_leaves_no_thread_and_no_port(threads: Threads) -> None:
    before, port = signal.getsignal(signal.SIGTERM), free_port()
    with within(Service("within", {"idle": idle}, listen=("127.0.0.1", port))):
        assert fetched(port, "/readyz")[0] == 200
        assert sockets_at(port)
        assert "tieredstore-within-idle" in threads()
        assert signal.getsignal(signal.SIGTERM) == before
    wait_until(lambda: threads() == set())
    assert sockets_at(port) == set()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_threads_that_go_on_are_named_when_the_time_is_up() -> None:
    go_on = threading.Event()

    def slow(stop: Stop) -> None:
        go_on.wait(60)

    with within(Service("within", {"slow": slow})) as service:
        service.stop()
        assert service.join(0.05) == ("slow",)
        go_on.set()
        assert service.join(60) == ()


def test_an_address_that_cannot_be_listened_on_begins_no_thread(threads: Threads) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = Service("within", {"idle": idle}, listen=("127.0.0.1", taken.getsockname()[1]))
        with pytest.raises(ConfigError, match="choose another address or port"), within(service):
            pass
    for port in (-1, 70_000):
        with pytest.raises(ConfigError), within(Service("within", {}, listen=("127.0.0.1", port))):
            pass
    assert threads() == set()


def test_a_service_is_run_on_the_main_thread_only() -> None:
    messages: list[str] = []

    def run() -> None:
        try:
            Service("within", {"idle": idle}).run()
        except RuntimeError as error:
            messages.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert messages == ["signals reach the main thread only: run a service there"]


def test_a_pause_of_the_longest_time_in_the_settings_ends_at_a_stop() -> None:
    stop = Stop(1.0)
    with ThreadPoolExecutor(1) as pool:
        pause = pool.submit(stop.wait, (2**63 - 1) / 1000)
        with suppress(TimeoutError):
            pause.exception(0.1)  # an error would come at once
        stop.ask()
        assert pause.result()


def test_drain_times_that_cannot_be_are_refused() -> None:
    for drain_s in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError):
            Stop(drain_s)
