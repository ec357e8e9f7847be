"""The service's process: its HTTP answers and exit codes."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.pipelines.pipeline_runs import listed
from tests.support.pipelines.pipeline_service import PipelineService, pipeline_service
from tests.support.spark.spark_pipelines import ROOT, TOPIC, Kept
from tieredstore.pipelines import load_pipeline
from tieredstore.pipelines.run.generation import commit_log_of

pytestmark = [pytest.mark.slow, pytest.mark.soak]


@contextmanager
def running(folder: Path, **changes: str) -> Generator[tuple[PipelineService, Kept]]:
    """Run a service over a bucket in a folder, with records to write. An empty value removes a setting."""
    with closing(Kept(folder)) as kept:
        kept.write(50)
        file = kept.file(**changes)
        file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.endswith("=\n")))
        with pipeline_service(folder, file, drain_s=3600) as service:
            yield service, kept


def test_it_answers_and_a_signal_lets_its_batch_end(tmp_path: Path) -> None:
    with running(tmp_path) as (service, kept):
        service.wait_until_ready()
        written = 'tieredstore_pipeline_records_total{generation="1",pipeline="kept"} 100.0'
        service.wait_until(lambda: written in (service.asked("metrics") or ""))
        metrics = service.asked("metrics") or ""
        assert 'tieredstore_pipeline_up{generation="1",pipeline="kept"} 1.0' in metrics
        assert service.asked("healthz") is not None
        service.stop()
        assert sum(map(len, kept.offsets().values())) == 100


def test_a_broker_that_stays_away_ends_it_with_75(tmp_path: Path) -> None:
    client = {"kafka__bootstrap__servers": "127.0.0.1:9", "kafka__socket__connection__setup__timeout__ms": "2000"}
    with running(tmp_path, outage__seconds="1", **client) as (service, _):
        assert service.ended() == 75, service.said()[-3000:]
        assert service.asked("readyz") is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_waits_for_its_broker_at_the_start_has_nothing_to_wait_for(
    tmp_path: Path, signum: signal.Signals
) -> None:
    client = {"kafka__bootstrap__servers": "127.0.0.1:9", "kafka__socket__connection__setup__timeout__ms": "2000"}
    with running(tmp_path, **client) as (service, _):
        service.wait_until(lambda: "retrying for at most 3600 s" in service.said())
        service.stop(signum)


def test_a_stop_while_its_store_does_not_answer_at_the_start_has_nothing_to_wait_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = {
            "output__storage__root": "", "output__storage__backend__class": "s3",
            "output__storage__s3__bucket__name": "kept",
            "output__storage__s3__region": "nowhere", "output__storage__s3__path__style__access__enabled": "true",
            "output__storage__s3__endpoint__url": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "output__storage__aws__access__key__id": "id", "output__storage__aws__secret__access__key": "secret",
        }  # fmt: skip
        with running(tmp_path, **store) as (service, _):
            silent.settimeout(300)
            connection, _ = silent.accept()
            with connection:
                service.wait_until(lambda: "starting: no answer yet from the output http://127" in service.reasons())
                service.stop()


def test_a_topic_that_is_nowhere_is_told_of_and_the_others_are_written(tmp_path: Path) -> None:
    with running(tmp_path, kafka__new__consumer__topic__list=f"{TOPIC},ordrs") as (service, kept):
        service.wait_until(lambda: sum(kept.committed(tmp_path / "kept.properties").values()) == 100)
        said = service.said()
        assert said.count("there is no topic 'ordrs' in the bucket; did you mean 'orders'?; the pipeline reads") == 1
        service.stop()


def test_another_driver_ends_it_with_5(tmp_path: Path) -> None:
    with running(tmp_path) as (service, kept):
        service.wait_until_ready()
        log = commit_log_of(load_pipeline(tmp_path / "kept.properties"), kept.store)
        log.read()
        log.append("begin", "another")
        kept.write(50)
        assert service.ended() == 5, service.said()[-3000:]


def test_too_many_bad_messages_end_it_with_4_and_nothing_of_them_appears(tmp_path: Path) -> None:
    bad = {"secor__message__parser__class": "json", "message__timestamp__name": "nowhere"}
    with running(tmp_path, **bad, secor__consumer__max_bad_messages="7") as (service, kept):
        assert service.ended() == 4, service.said()[-3000:]
        assert re.search(r"100 messages of a batch are bad.*max_bad_messages is 7.*orders-0 at 0", service.said())
        assert listed(kept.store, ROOT) == []
