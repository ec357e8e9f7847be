"""Messages shorten foreign text: even with endless key ids, names, values and answers they are short."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.module_imports import product_sources
from tests.support.paths import GOLDEN
from tests.support.records.small_segments import ENC, memory_settings, new_metadata, write_segment
from tieredstore import errors
from tieredstore.backends.azure.errors import answer_error
from tieredstore.backends.http.sockets import connection_failure
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.registry import store_from_settings
from tieredstore.backends.s3.errors import error_of
from tieredstore.config import settings_from
from tieredstore.errors import LONGEST_SENTENCE, TieredStoreError, excerpt
from tieredstore.format.keys import Suffix
from tieredstore.format.manifest import SegmentManifest
from tieredstore.kafka.checkpoints import parse_leader_epochs, parse_partition_metadata
from tieredstore.live.client_log import ClientLog
from tieredstore.live.faults import fault
from tieredstore.model import Uuid
from tieredstore.pubsub import errors as pubsub_errors
from tieredstore.remote import RemoteStorageManager
from tieredstore.transform.keyring import KeyRing

SHORT = 1200
"""Limit on the length of a message that quotes two or three foreign texts."""

ENDLESS = "x" * 100_000
CLASSES = [
    kind
    for kind in (vars(errors) | vars(pubsub_errors)).values()
    if isinstance(kind, type) and issubclass(kind, TieredStoreError)
]


@given(text=st.text(max_size=300), most=st.integers(40, 200))
def test_an_excerpt_is_the_text_or_says_how_long_it_is(text: str, most: int) -> None:
    shown = excerpt(text, most)
    if len(text) <= most:
        assert shown == text
    else:
        assert len(shown) == most
        assert shown[: most // 4] == text[: most // 4]
        assert shown.endswith(f"{text[-4:]} ({len(text)} characters)")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_no_error_is_endless(kind: type[TieredStoreError]) -> None:
    error = kind(f"the beginning {ENDLESS} the end")
    assert len(str(error)) == LONGEST_SENTENCE
    assert str(error).startswith("the beginning")
    assert "the end (" in str(error)
    assert type(error)(*error.args).args == error.args


@pytest.mark.slow
def test_no_error_of_ours_says_more_than_its_root_lets_it() -> None:
    """The root class limits the text of a message. An error class with its own ``__str__`` would bypass the limit."""
    own_ways = {
        f"{name}.{node.name}"
        for name, path in product_sources().items()
        if path.suffix == ".py" and "__str__" in (text := path.read_text())  # parsing all modules would take seconds
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in {kind.__name__ for kind in CLASSES} for base in node.bases)
        and any(isinstance(part, ast.FunctionDef) and part.name == "__str__" for part in node.body)
        and name not in ("tieredstore.errors", "tieredstore.pubsub.errors")
    }
    assert own_ways == set()


def sentence_of(call: Callable[..., object], *arguments: object) -> str | None:
    """Return the message of the error that the call raises or returns; None if there is none."""
    try:
        outcome = call(*arguments)
    except TieredStoreError as error:
        return str(error)
    return str(outcome) if isinstance(outcome, TieredStoreError) else None


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a JSON value's leaves."""
    if not isinstance(value, dict):
        yield path
        return
    for name, inner in value.items():
        yield from leaves(inner, (*path, name))


def with_leaf(path: tuple[str, ...], leaf: object) -> bytes:
    """Return the manifest with one leaf replaced."""
    manifest = inner = json.loads(MANIFEST)
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = leaf
    return json.dumps(manifest).encode()


MANIFEST = next((GOLDEN / "03-enc").rglob("*.rsm-manifest")).read_text()
LEAVES = list(leaves(json.loads(MANIFEST)))


@pytest.mark.parametrize("endless", [ENDLESS, [ENDLESS], {ENDLESS: 1}, 10**3000], ids=["text", "list", "object", "int"])
def test_a_manifest_of_endless_values_is_refused_in_short(endless: object) -> None:
    sentences = [sentence_of(SegmentManifest.from_bytes, with_leaf(path, endless)) for path in LEAVES]
    refused = [sentence for sentence in sentences if sentence is not None]
    assert len(refused) > len(LEAVES) / 3
    assert max(map(len, refused)) < SHORT


def test_an_endless_key_id_is_told_in_short(tmp_path: Path) -> None:
    store, metadata = MemoryObjectStore(), new_metadata(100)
    with RemoteStorageManager(memory_settings(mode=ENC), store=store) as manager:
        manager.copy_log_segment_data(metadata, write_segment(tmp_path, b"x" * 100))
        key = manager.layout.key(metadata, Suffix.MANIFEST)
    manifest = json.loads(store.get(key))
    manifest["encryption"]["dataKey"] = ENDLESS + ":" + manifest["encryption"]["dataKey"].split(":")[1]
    store.put(key, json.dumps(manifest).encode())
    for mode in (ENC, {}):
        with (
            RemoteStorageManager(memory_settings(mode=mode), store=store) as manager,
            pytest.raises(TieredStoreError, match=r"xxx….*\(100000 characters\)") as caught,
        ):
            manager.open(metadata)
        assert len(str(caught.value)) < SHORT


def endless_settings() -> Iterator[dict[str, str]]:
    plain = {"storage.backend.class": "memory", "chunk.size": "100"}
    more = ("compression.enabled", "key.prefix.mask", "fetch.chunk.cache.class", "custom.metadata.fields.include")
    for name in (*plain, *ENC, *more):
        yield {**plain, **ENC, name: ENDLESS}
    yield {**plain, ENDLESS: "x"}


def test_endless_settings_are_refused_in_short() -> None:
    sentences = [sentence_of(settings_from, texts) for texts in endless_settings()]
    refused = [sentence for sentence in sentences if sentence is not None]
    assert len(refused) > 6
    assert max(map(len, refused)) < SHORT


TOLD: dict[str, Callable[[], object]] = {
    "S3": lambda: error_of("reading", ENDLESS, ENDLESS, 500),
    "Azure": lambda: answer_error("reading", 500, ENDLESS, ENDLESS),
    "connection": lambda: connection_failure(OSError(ENDLESS)),
    "broker": lambda: fault(KafkaError(KafkaError._FAIL, ENDLESS), "reading"),
    "uuid": lambda: Uuid.parse(ENDLESS),
    "checkpoint": lambda: parse_leader_epochs(f"0\n1\n{ENDLESS}\n".encode()),
    "partition.metadata": lambda: parse_partition_metadata(f"version: {ENDLESS}\n".encode()),
    "key ring": lambda: KeyRing(ENDLESS, {}).unwrap(ENDLESS, b""),
    "store": lambda: store_from_settings(settings_from({"storage.backend.class": ENDLESS, "chunk.size": "1"})),
}


@pytest.mark.parametrize("what", TOLD)
def test_what_others_say_is_told_in_short(what: str) -> None:
    sentence = sentence_of(TOLD[what])
    assert sentence is not None
    assert "x" * 20 in sentence
    assert len(sentence) < SHORT


def test_a_clients_log_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        ClientLog().log(logging.WARNING, "%s [%s] %s", "REQTMOUT", "rdkafka#consumer-1", ENDLESS)
    assert all(900 < len(message) < SHORT for message in caplog.messages)
    assert len(caplog.messages) == 2
