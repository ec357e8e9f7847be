"""The uploader as a service in this process: it notices segments, ships, reports, reloads its settings and stops."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import tieredstore as ts
from tests.support.cli.cli_process import tieredstore
from tests.support.service_process import within
from tests.support.simulated_time import SimulatedClock
from tests.support.stores.doubles import FaultyStore, Operation, OperationName, ScriptedStore
from tests.support.uploader.uploader_disk import BrokerDisk, SaidSettling, extents, run_once, uploader_of, watermark_of
from tests.support.waiting import wait_until
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.catalog.watermark import hole_key, watermark_key
from tieredstore.config import read_properties, settings_from
from tieredstore.errors import ConfigError, StoreUnavailableError
from tieredstore.model import TopicPartition
from tieredstore.testing.segments import PARTITION
from tieredstore.uploader import Leadership
from tieredstore.uploader import service as module
from tieredstore.uploader.service import Pauses, uploader_service
from tieredstore.uploader.target import GRACE_S
from tieredstore.uploader.uploader import Uploader


def page(service: Any, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.endpoint.port}/{name}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture
def disk(tmp_path: Path) -> BrokerDisk:
    return BrokerDisk(tmp_path / "logs", segments=2)


@pytest.mark.parametrize("interval_ms", ["600000", "100"], ids=["by notices", "by sweeps"])
def test_a_segment_that_is_closed_while_the_uploader_runs_is_shipped(
    disk: BrokerDisk, interval_ms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if interval_ms == "100":
        monkeypatch.setattr(module, "FolderWatch", NoWatch)
    store = MemoryObjectStore()
    with (
        uploader_of(disk.log_dir, store, scan_interval_ms=interval_ms, listen="127.0.0.1:0") as uploader,
        within(uploader_service(uploader)) as service,
    ):
        wait_until(lambda: extents(store) == [(0, 9)])
        if interval_ms == "600000":
            # Wait until the folder is watched.
            wait_until(lambda: not uploader.held.incomplete)
        disk.grow(2)
        wait_until(lambda: len(extents(store)) == 3)
        wait_until(lambda: "tieredstore_uploader_segments_total 3.0" in page(service, "metrics"))
        assert json.loads(page(service, "readyz"))["ready"] is True
        assert json.loads(page(service, "healthz"))["alive"] is True
        wait_until(lambda: json.loads(page(service, "lag"))["partitions"][0]["next_offset"] == 30)

    assert watermark_of(store).next_offset == 30


class NoWatch:
    """A system without file notifications."""

    def __init__(self, _: object) -> None:
        pass

    def watch(self, folders: object) -> bool:
        return False

    def close(self) -> None:
        pass


def test_a_partition_that_is_not_settled_is_shipped_once_it_is(disk: BrokerDisk) -> None:
    store, settling = MemoryObjectStore(), SaidSettling()
    settling.high = 0
    with uploader_of(disk.log_dir, store, settling) as uploader, within(uploader_service(uploader)):
        wait_until(lambda: uploader.gauges()["waiting_partitions"] == 1)
        assert extents(store) == []
        assert uploader.gauges()["lag_segments"] == 1
        settling.high = 10
        wait_until(lambda: extents(store) == [(0, 9)])
        wait_until(lambda: uploader.gauges()["lag_segments"] == 0)


def test_a_hole_makes_it_unready(disk: BrokerDisk) -> None:
    store = MemoryObjectStore()
    run_once(disk.log_dir, store)
    disk.grow(3)
    disk.delete(3)
    with uploader_of(disk.log_dir, store, scan_interval_ms="100") as uploader, within(uploader_service(uploader)):
        wait_until(lambda: "holes" in uploader.health.reasons())
    assert len(watermark_of(store).holes) == 1


@pytest.mark.parametrize("is_gone", [False, True])
def test_it_is_ready_again_when_the_step_that_failed_is_no_longer_due(disk: BrokerDisk, is_gone: bool) -> None:
    """Only the save of the watermark fails. After it, there is no segment left to ship."""
    key, store = watermark_key("", PARTITION), MemoryObjectStore()
    faulty = FaultyStore(store, lambda operation: operation.name == "put" and operation.keys == (key,))
    with uploader_of(disk.log_dir, faulty) as uploader:
        assert len(uploader.run_once(tries=1)) == 1
        uploader.sweep()
        assert "store" in uploader.health.reasons()
        assert extents(store) == [(0, 9)]
        faulty.fail_at = None
        if is_gone:
            shutil.rmtree(disk.folder)
            uploader.sweep()
        else:
            assert uploader.run_once() == []
        assert "store" not in uploader.health.reasons()


def test_a_thread_that_a_store_does_not_let_go_ends_the_service(disk: BrokerDisk) -> None:
    clock = SimulatedClock()
    with (
        uploader_of(disk.log_dir, MemoryObjectStore(), None, clock, drain_ms="0") as uploader,
        uploader.tries.under_way("a try of the test", 0.0),
    ):
        clock.sleep(GRACE_S + 1)
        with (
            pytest.raises(StoreUnavailableError, match="a try of the test has not returned"),
            within(uploader_service(uploader)) as service,
        ):
            wait_until(lambda: service.failure is not None)
    assert service.failure is not None
    assert isinstance(service.failure, StoreUnavailableError)
    assert service.failure.exit_code == 75


NOBODY = {"leadership": f"{__name__}.Nobody"}
SILENCES: dict[str, tuple[OperationName, str, dict[str, str]]] = {
    "a step": ("list", "", {}),
    "holes are looked for": ("list", "!tieredstore/holes/", {}),
    "a hole is filled": ("get", "!tieredstore/watermarks/", NOBODY),
    "what is expired is listed": ("list", "events", {"retention_ms": "1000"}),
    "what is expired is deleted": ("delete", "events", {"retention_ms": "0", "retention_dry_run": "false"}),
    "a watermark is followed": ("get", "!tieredstore/watermarks/", NOBODY),
}


class Nobody(Leadership):
    """Leadership of a broker that leads nothing, without a cluster to ask."""

    def led(self) -> set[TopicPartition]:
        return set()


@pytest.mark.slow
@pytest.mark.parametrize("silence", SILENCES)
def test_whatever_waits_for_a_store_that_is_silent_ends_the_service(disk: BrokerDisk, silence: str) -> None:
    """Only the upload of a segment has a separate time limit."""
    verb, prefix, own = SILENCES[silence]
    pauses = Pauses(holes=0.05, follow=0.05, first_expiry=0.05)
    inner = MemoryObjectStore()
    if silence != "a step":
        run_once(disk.log_dir, inner)
    if silence == "a hole is filled":
        inner.put(hole_key("", disk.partition), b"")
    speaks = threading.Event()
    store = ScriptedStore(inner)
    clock = SimulatedClock()

    def fall_silent(_: Operation) -> None:
        clock.now = 60 + GRACE_S + 1  # enough for a call to be lost, but not for a step, which has twice the time
        assert speaks.wait(120)

    store.on(verb, f"{prefix}*", fall_silent)
    with uploader_of(disk.log_dir, store, None, clock, drain_ms="0", upload_timeout_ms="60000", **own) as uploader:
        try:
            with (
                pytest.raises(StoreUnavailableError, match=f"{verb} of .* has not returned") as raised,
                within(uploader_service(uploader, pauses=pauses)) as service,
            ):
                wait_until(lambda: service.failure is not None)
        finally:
            speaks.set()
    assert raised.value.exit_code == 75


@contextmanager
def abandoned_run(disk: BrokerDisk) -> Generator[tuple[Uploader, threading.Event]]:
    """Yield an uploader whose single run was given up, and the event at which the silent store answers."""
    speaks = threading.Event()
    clock = SimulatedClock()

    def fall_silent(_: Operation) -> None:
        clock.sleep(1000)
        speaks.wait(120)

    store = ScriptedStore(MemoryObjectStore()).on("list", do=fall_silent)
    with uploader_of(disk.log_dir, store, None, clock, upload_timeout_ms="1000") as uploader:
        try:
            with pytest.raises(StoreUnavailableError, match="has not returned"):
                uploader.run_once()
            yield uploader, speaks
        finally:
            speaks.set()


def test_a_single_run_does_not_wait_for_a_silent_store_either(disk: BrokerDisk) -> None:
    with abandoned_run(disk):
        pass


def test_a_single_run_that_was_abandoned_ends_once_the_uploader_is_closed(
    disk: BrokerDisk, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    with abandoned_run(disk) as (uploader, speaks):
        uploader.close()
        speaks.set()
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("tieredstore-uploader-watched"):
                thread.join(60)
                assert not thread.is_alive()
        assert opened_in(disk.log_dir) == []
    assert "holes" not in caplog.text


def opened_in(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    links = list[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(str(descriptor.readlink()))
    return [link for link in links if link.startswith(str(folder))]


def test_other_settings_of_the_store_are_taken_while_it_runs(disk: BrokerDisk, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = (
        settings_from({"storage.backend.class": "filesystem", "storage.root": str(folder), "chunk.size": "256"})
        for folder in folders
    )
    with uploader_of(disk.log_dir, MemoryObjectStore()) as made_up:
        own = made_up.own
    with Uploader(one, own) as uploader, within(uploader_service(uploader)):
        stores = [FilesystemObjectStore(folder) for folder in folders]
        wait_until(lambda: extents(stores[0]) == [(0, 9)])
        with pytest.raises(ConfigError):
            uploader.replace_target(one.model_copy(update={"storage_root": tmp_path / "absent"}))
        uploader.replace_target(two)
        disk.grow()
        # The other store has nothing of the partition, so everything on disk is shipped.
        wait_until(lambda: extents(stores[1])[-1:] == [(10, 19)])
    assert extents(stores[0]) == [(0, 9)]


def settings_file(disk: BrokerDisk, folder: Path, **more: str) -> Path:
    (folder / "store").mkdir(exist_ok=True)
    lines = {
        "storage.backend.class": "filesystem",
        "storage.root": str(folder / "store"),
        "chunk.size": "256",
        "uploader.leadership": "static",
        "uploader.log.dirs": str(disk.log_dir),
        **{f"uploader.{name.replace('_', '.')}": text for name, text in more.items()},
    }
    path = folder / "uploader.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
    return path


def test_the_uploader_runs_until_it_is_stopped(disk: BrokerDisk, tmp_path: Path) -> None:
    with Uploader(settings_file(disk, tmp_path)) as uploader:
        store = FilesystemObjectStore(tmp_path / "store")

        def stop() -> None:
            try:
                wait_until(lambda: extents(store) == [(0, 9)])
            finally:
                uploader.stop()

        stopping = threading.Thread(target=stop)
        stopping.start()
        assert uploader.run() == 0
        stopping.join()
    assert extents(store) == [(0, 9)]


def test_a_stop_before_the_start_ends_it_at_once(disk: BrokerDisk, tmp_path: Path) -> None:
    with Uploader(settings_file(disk, tmp_path)) as uploader:
        uploader.stop()
        assert uploader.run() == 0


def test_a_reload_takes_the_settings_of_the_store_and_names_the_others(
    disk: BrokerDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "two").mkdir()
    with Uploader(settings_file(disk, tmp_path)) as uploader:
        path = settings_file(disk, tmp_path, concurrent_uploads="3")
        path.write_text(path.read_text().replace(str(tmp_path / "store"), str(tmp_path / "two")))
        uploader.reload()
        uploader.run_once()
        path.write_text("storage.backend.class=nonsense")
        with pytest.raises(ConfigError):
            uploader.reload()
    assert extents(FilesystemObjectStore(tmp_path / "store")) == []
    assert extents(FilesystemObjectStore(tmp_path / "two")) == [(0, 9)]
    assert "uploader.concurrent.uploads has changed; the change takes effect at the next restart" in caplog.text


@pytest.mark.parametrize("kind", ["file", "text", "mapping", "bucket", "manager"])
def test_an_uploader_takes_each_source_that_has_its_settings(kind: str, disk: BrokerDisk, tmp_path: Path) -> None:
    file = settings_file(disk, tmp_path)
    with ts.open(file) as bucket, ts.RemoteStorageManager(file) as manager:
        sources: dict[str, Any] = {
            "file": file, "text": str(file), "mapping": read_properties(file), "bucket": bucket, "manager": manager,
        }  # fmt: skip
        with ts.Uploader(sources[kind]) as uploader:
            planned = [one.base_offset for one in uploader.plan()]
            assert uploader.run_once() == []
        assert [one.base_offset for one in bucket.segments("events")] == planned == [0]


def test_settings_without_those_of_the_uploader_are_refused(disk: BrokerDisk, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="have no uploader"):
        Uploader(settings_from({"storage.backend.class": "memory"}))


def test_the_command_ships_once_and_says_what_was_left(disk: BrokerDisk, tmp_path: Path) -> None:
    settings = settings_file(disk, tmp_path)
    planned = tieredstore("uploader", "-c", settings, "--dry-run")
    assert (planned.code, "events" in planned.text) == (0, True)
    segments, summary = tieredstore("uploader", "-c", settings, "--once", "--dry-run", "--json").rows
    assert [(row["status"], row["topic"], row["base_offset"], row["last_offset"]) for row in segments] == [
        ("planned", "events", 0, 9)
    ]
    assert (summary["planned"], summary["dry_run"], summary["size"]) == (1, True, segments[0]["size"])
    assert list((tmp_path / "store").iterdir()) == []
    (disk.log_dir / "replication-offset-checkpoint").write_text("0\n1\nevents 0 9\n")
    waiting = tieredstore("uploader", "-c", settings, "--once")
    assert (waiting.code, waiting.text.splitlines()[-1]) == (0, "nothing shipped")
    assert "the high watermark is 9" in waiting.text
    (row,), summary = tieredstore("uploader", "-c", settings, "--once", "--json").rows
    assert (row["status"], row["code"], row["base_offset"]) == ("kept", "waiting", 0)
    assert (summary["done"], summary["kept"]) == (0, 1)
    (disk.log_dir / "replication-offset-checkpoint").write_text("0\n1\nevents 0 10\n")
    done = tieredstore("uploader", "-c", settings, "--once", "--json")
    assert done.code == 0
    assert done.rows[1]["done"] == 1
    assert tieredstore("uploader", "-c", settings, "--once").clean().text == "nothing to ship\n"
    disk.grow(2)
    disk.delete(2)
    (disk.log_dir / "replication-offset-checkpoint").unlink()
    disk.grow()
    lost = tieredstore("uploader", "-c", settings, "--once")
    assert lost.code == 3
    assert "offsets could not be shipped" in lost.stderr


def test_the_command_fails_if_a_log_directory_has_failed(disk: BrokerDisk, tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    failed.symlink_to(failed)
    done = tieredstore("uploader", "-c", settings_file(disk, tmp_path, log_dirs=f"{disk.log_dir},{failed}"), "--once")
    assert done.code == 75
    assert f"not shipped: {failed}: it cannot be listed" in done.text
    assert "1 segment shipped" in done.text
    assert f"{failed} has failed, and is left out until the uploader is restarted" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--json"], "--json-logs"),
        (["--check"], "has no option --check"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    disk: BrokerDisk, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = tieredstore("uploader", "-c", settings_file(disk, tmp_path), *arguments)
    assert (done.code, sentence in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"leadership": "auto"}, "there is no broker to ask"),
        ({"leadership": "no.such.Class"}, "or a Python class that can be imported"),
        ({"leadership": "pathlib.Path"}, "not a subclass of Leadership"),
        ({"log_dirs": "absent"}, "does not exist or is not a directory"),
        ({"topics_include": "("}, "not a regular expression"),
        ({"topics_exclude": "[a-z&&[^q]].*"}, "nests character classes"),
        ({"concurrent_uploads": "0"}, "uploader.concurrent.uploads is '0'"),
    ],
)
def test_wrong_settings_are_a_sentence_and_nothing_is_started(
    disk: BrokerDisk, tmp_path: Path, more: dict[str, str], sentence: str
) -> None:
    done = tieredstore("uploader", "-c", settings_file(disk, tmp_path, **more), "--once")
    assert (done.code, sentence in done.stderr) == (2, True)
    assert list((tmp_path / "store").iterdir()) == []


def test_a_line_of_the_log_is_an_object(disk: BrokerDisk, tmp_path: Path) -> None:
    settings = settings_file(disk, tmp_path)
    tieredstore("uploader", "-c", settings, "--once")
    disk.grow(2)
    disk.delete(2)
    done = tieredstore("uploader", "-c", settings, "--once", "--json-logs")
    line = json.loads(done.stderr.splitlines()[0])
    assert (line["level"], "offsets 10 to 19 are not shipped" in line["message"]) == ("error", True)


def test_the_lines_of_a_service_end_with_it(tmp_path: Path) -> None:
    logger = logging.getLogger("tieredstore")
    before = list(logger.handlers), logger.level
    tieredstore("uploader", "-c", tmp_path / "absent.properties").fails(2, "absent.properties")
    assert (logger.handlers, logger.level) == before


class Later(Leadership):
    """Leadership that begins when the test sets it."""

    leads = threading.Event()

    def led(self) -> set[TopicPartition]:
        return {("events", 0)} if self.leads.is_set() else set()


@pytest.mark.slow
def test_a_partition_that_is_led_since_now_is_held_and_shipped_without_waiting_for_a_sweep(disk: BrokerDisk) -> None:
    store, settling = MemoryObjectStore(), SaidSettling()
    settling.high = 0
    own = {"scan_interval_ms": "600000", "leadership": f"{__name__}.Later"}
    with uploader_of(disk.log_dir, store, settling, **own) as uploader, within(uploader_service(uploader)):
        wait_until(lambda: not uploader.health.reasons())
        assert uploader.gauges()["led_partitions"] == 0
        Later.leads.set()
        wait_until(lambda: uploader.held.files == 4)
        settling.high = 10
        wait_until(lambda: extents(store) == [(0, 9)])
        # Another broker leads now. The uploader stops shipping the partition, but holds its unshipped segments.
        settling.high = 0
        disk.grow()
        wait_until(lambda: uploader.held.files == 4)
        Later.leads.clear()
        wait_until(lambda: uploader.gauges()["led_partitions"] == 0)
        settling.high = 20
        assert uploader.sweep().files == 4
        assert extents(store) == [(0, 9)]
