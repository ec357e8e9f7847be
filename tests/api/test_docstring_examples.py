"""Each public class and function has an example in its docstring, and every example runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.support.servers.kafka import KafkaServer

OF_CORE: Mapping[str, Callable[[dict[str, Any], str], bool]] = {
    "Bucket": lambda _, out: out.startswith("txn 5 "),
    "Outcome": lambda names, _: "outcome" not in names,
    "Plan": lambda names, out: "planned=5" in out and names["totals"].done == 5,
    "Read": lambda names, _: str(names["batch"].column("offset")[-1]) == "3046",
    "RemoteStorageManager": lambda names, _: len(names["log"]) == names["segment"].segment_size_in_bytes,
    "Segment": lambda names, _: len(names["first_batch"]) == 61,
    "Settings": lambda _, out: out == "4194304 False\n",
    "TieredStoreError": lambda names, out: out == "" and "error" not in names,
    "Topic": lambda _, out: out == "txn [(0, 3047)]\n",
    "open": lambda names, _: len(names["frame"]) == 5,
}
"""For each public name, a check that its example did its work, from the variables it set and its output."""

WINGS = {"BatchConsumer", "BatchProducer", "Consumer", "Uploader"}
with_wings = pytest.mark.skipif(find_spec("tieredstore.pubsub") is None, reason="the core alone")


def run(name: str, names: dict[str, Any], *replaced: tuple[str, str]) -> None:
    text = inspect.getdoc(getattr(tieredstore, name)) or ""
    found = re.search(r"^Example::\n\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    assert found is not None, f"{name} has no example"
    code = inspect.cleandoc("\n" + found[1])
    for old, new in replaced:
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, f"<example of {name}>", "exec"), names | {"tieredstore": tieredstore}, names)


@pytest.fixture
def folder(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the working directory of an example, with its settings file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store.properties").write_text(f"storage.backend.class=filesystem\nstorage.root={root}\n")
    return tmp_path


def test_each_public_name_has_one() -> None:
    assert OF_CORE.keys() | WINGS == set(tieredstore.__all__) - {"__version__", "errors"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_CORE)
@pytest.mark.usefixtures("folder")
def test_an_example_of_the_core(name: str, bucket: tieredstore.Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    topic = {"Outcome": (), "Topic": (), "Settings": ()}.get(name, (("orders", "txn"),))
    names: dict[str, Any] = {"bucket": bucket}
    run(name, names, *topic, *((("s3://logs/prod/", "store.properties"),) if name == "open" else ()))
    assert OF_CORE[name](names, capsys.readouterr().out)


@with_wings
def test_the_uploaders(folder: Path, disk: Path) -> None:
    settings = (folder / "store.properties").read_text()
    of_uploader = f"uploader.leadership=static\nuploader.log.dirs={disk}\n"
    (folder / "uploader.properties").write_text(settings + of_uploader)
    names: dict[str, Any] = {}
    run("Uploader", names)
    assert names["left"] == []
    with tieredstore.open("store.properties") as bucket:
        assert len(bucket.segments("txn")) == 4  # the last segment may still be active


@with_wings
@pytest.mark.usefixtures("folder")
def test_those_of_batches(capsys: pytest.CaptureFixture[str]) -> None:
    with import_module("tieredstore.pubsub").open_topics("store.properties") as topics:
        topics.create("orders")
    names: dict[str, Any] = {}
    run("BatchProducer", names)
    assert names["place"].partition == 0
    # The program ends after its first record, because a loop over records() waits for more.
    run("BatchConsumer", names, ("consumer.records()", "[next(consumer.records())]"))
    assert capsys.readouterr().out == "b'a key' b'a value'\n"


@with_wings
def test_the_consumers(folder: Path, kafka: KafkaServer) -> None:
    tiered = import_module("tests.support.kafka.live_topics").TieredTopic(kafka, folder)
    tiered.produce([import_module("tests.support.kafka.kafka_topics").Produced(None, b"a value")])
    names: dict[str, Any] = {}
    run(
        "Consumer", names, ("127.0.0.1:9092", kafka.bootstrap_servers), ("orders", tiered.topic),
        ("billing", f"{tiered.topic}-billing"), ("poll(10.0)", "poll(60.0)"),
    )  # fmt: skip
    assert names["message"].value() == b"a value"
