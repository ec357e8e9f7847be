"""Schemas restored from a snapshot into a simulated registry: the same ids, subjects and versions, or nothing."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cli.cli_process import Result, tieredstore
from tests.support.network.key_services import serving
from tests.support.network.schema_registry_server import RegistryService
from tieredstore import schema_registry
from tieredstore.format.cluster_snapshot import ClusterSnapshot
from tieredstore.ops.snapshots.registry import read_schemas
from tieredstore.ops.snapshots.storing import Snapshots
from tieredstore.remote import RemoteStorageManager
from tieredstore.schema_registry import SchemaRegistry

MONEY = {"type": "record", "name": "Money", "fields": [{"name": "amount", "type": "long"}]}
TAKEN_MS = 1_795_867_200_000


class Registries:
    """A lost registry, a registry to restore into, and a bucket with a snapshot of the lost one."""

    def __init__(self, root: Path, lost: RegistryService, target: RegistryService) -> None:
        self.root, self.lost, self.target = root, lost, target

    def snapshot(self, taken_ms: int = TAKEN_MS) -> None:
        with SchemaRegistry(self.lost.url) as registry, RemoteStorageManager(str(self.root)) as manager:
            schemas, not_held = read_schemas(registry)
            assert not not_held
            Snapshots.of(manager).write(ClusterSnapshot("c1", taken_ms, schemas=schemas), is_hourly=True)

    def restore(self, *words: str) -> Result:
        return tieredstore("restore", "schemas", "--store", self.root, "--registry", self.target.url, *words)


@pytest.fixture
def registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registries]:
    monkeypatch.setattr(schema_registry, "RETRY_POLICY", replace(schema_registry.RETRY_POLICY, sleep=lambda _: None))
    lost, target = RegistryService(), RegistryService()
    lost.register("unused", '"bytes"')
    # The schema with the reference has a smaller id than the schema that it refers to. An import can lead to this.
    lost.schemas[2] = {"schema": '{"type":"array","items":"Money"}', "references": [
        {"name": "Money", "subject": "money", "version": 1},
    ]}  # fmt: skip
    lost.subjects["orders/value"] = {3: 2}
    lost.register("money", MONEY)
    lost.register("money", '"long"')
    lost.register("events", "message E {}", kind="PROTOBUF")
    lost.config |= {"": "FULL", "money": "NONE"}
    lost.deleted |= {("unused", 1), ("money", 2)}
    with serving(lost), serving(target):
        registries = Registries(tmp_path, lost, target)
        registries.snapshot()
        yield registries


def test_everything_is_there_again_and_the_modes_are_back(registries: Registries) -> None:
    planned = registries.restore()
    assert planned.code == 0, planned
    assert "would be registered money version 1: id 3" in planned.text
    assert "5 schemas would be registered" in planned.text
    assert "nothing was registered: --yes does it" in planned.text
    assert not registries.target.subjects
    assert all(request.startswith("GET ") for request in registries.target.requests)
    done = registries.restore("--yes")
    assert done.code == 0, done
    assert "5 schemas registered" in done.text
    assert registries.target.contents() == registries.lost.contents()
    registries.target.requests.clear()
    again = registries.restore("--yes")
    assert "no schemas registered" in again.text
    assert "left alone: 5 there already" in again.text
    assert all(request.startswith("GET ") for request in registries.target.requests)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["error", "kill"])
def test_after_an_end_at_any_request_a_second_run_completes(registries: Registries, *, is_killed: bool) -> None:
    registries.restore("--yes").clean()
    target = registries.target
    for at in range(len(target.requests)):
        target.schemas, target.subjects, target.deleted = {}, {}, set()
        target.config, target.mode = {"": "BACKWARD"}, {"": "READWRITE", "money": "READONLY"}
        with pytest.MonkeyPatch.context() as patch:
            # Refuse request number ``at``; for a kill, refuse all later requests too.
            answers = itertools.count()
            patch.setattr(
                target,
                "answer",
                lambda *request, at=at, answers=answers: (
                    (400, {})
                    if (count := next(answers)) == at or (is_killed and count > at)
                    else RegistryService.answer(target, *request)
                ),
            )
            failed = registries.restore("--yes")
        assert failed.code == 6, (at, failed)
        assert "Traceback" not in failed.stderr
        again = registries.restore("--yes")
        assert again.code == 0, (at, again)
        target.mode.pop("money", None)
        assert target.contents() == registries.lost.contents(), at


def test_another_schema_under_an_id_or_a_version_is_refused_before_the_first_change(registries: Registries) -> None:
    registries.target.register("other", '"int"')
    before = copy.deepcopy(registries.target.contents())
    for words in ((), ("--yes",)):
        registries.restore(*words).fails(
            2, "has another schema under the id 1 of unused version 1", "restore into a registry without this id"
        )
    assert registries.target.contents() == before
    registries.target.schemas[1], registries.target.subjects = {"schema": '"bytes"'}, {"money": {1: 1}}
    registries.restore("--yes").fails(2, "has another schema as version 1 of money", "(id 1, not 3)")


def test_a_registry_with_other_subjects_keeps_its_own_level_and_a_subject_its_mode(registries: Registries) -> None:
    target = registries.target
    for _ in range(9):
        target.register("other", '"bytes"')
    target.schemas = {20: {"schema": '"bytes"'}}
    target.subjects = {"other": {1: 20}}
    target.mode["money"] = "READONLY"
    assert registries.restore("--yes").code == 0
    assert target.config == {"": "BACKWARD", "money": "NONE"}
    assert target.mode == {"": "READWRITE", "money": "READONLY"}
    assert target.subjects == {**registries.lost.subjects, "other": {1: 20}}


def test_a_text_that_the_registry_formats_anew_is_the_same(registries: Registries) -> None:
    registries.restore("--yes").clean()
    schemas = registries.target.schemas
    schemas[3]["schema"] = json.dumps(json.loads(schemas[3]["schema"]), indent=2)
    assert "5 there already" in registries.restore("--yes").text


def test_the_newest_snapshot_with_schemas_counts(registries: Registries) -> None:
    with RemoteStorageManager(str(registries.root)) as manager:
        Snapshots.of(manager).write(ClusterSnapshot("c1", TAKEN_MS + 7_200_000), is_hourly=True)
    assert "schemas of the snapshot of 2026-11-28 12:00:00" in registries.restore().text
    registries.restore("--at", "2026-11-28T11:59Z").fails(
        3, "no snapshot with schemas at or before 2026-11-28T11:59:00Z"
    )
    registries.restore("--at", "17").fails(2, "--at is 17, an offset")
    nowhere = tieredstore("restore", "schemas", "--store", registries.root)
    nowhere.fails(2, "no schema registry is named: give --registry URL")


def test_schemas_in_a_circle_are_damage(registries: Registries) -> None:
    registries.lost.schemas[3]["references"] = [{"name": "v", "subject": "orders/value", "version": 3}]
    registries.snapshot(TAKEN_MS + 3_600_000)
    registries.restore("--yes").fails(4, "refer to each other in a cycle")
