"""Restores by a user that a real authorizer refuses: one sentence names the missing right, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import admin

from tests.restore.produce.restores import Restore, committed, mixed_topics
from tests.support.cli.cli_process import Result, tieredstore
from tests.support.kafka.kafka_topics import TIMEOUT_S, Produced, create_acls, produce
from tests.support.servers.kafka import PASSWORD, USER, KafkaServer, start_kafka
from tieredstore.restore.produce.runs import CONTROL_TOPIC, ProduceOptions

_admin: Any = admin
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
LOGIN: Final = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """Run a broker with a plain listener for its administrator, and a SASL listener for the restricted user."""
    with start_kafka(**AUTHORIZER) as started:
        yield started


def allow(server: KafkaServer, kind: str, name: str, *operations: str) -> None:
    """Allow the user these operations."""
    bindings = [
        _admin.AclBinding(
            _admin.ResourceType[kind], name, _admin.ResourcePatternType.LITERAL, f"User:{USER}", "*",
            _admin.AclOperation[operation], _admin.AclPermissionType.ALLOW,
        )
        for operation in operations
    ]  # fmt: skip
    create_acls(server.bootstrap_servers, *bindings)


def run(restore: Restore, *words: object) -> Result:
    """Run a restore command as the restricted user."""
    assert isinstance(restore.server, KafkaServer)
    login = [word for name, value in LOGIN.items() for word in ("-X", f"{name}={value}")]
    where = "--store", restore.source.bucket.root, "--bootstrap-server", restore.server.sasl_servers
    return tieredstore("restore", *words, *where, *login)


def check_refusal(done: Result, code: int, *words: str) -> None:
    done.fails(code)
    *_, last = done.stderr.splitlines()
    assert all(word in last for word in words), done
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_each_missing_right_of_a_run_is_named(server: KafkaServer, tmp_path: Path) -> None:
    restore = Restore.into(server, mixed_topics(tmp_path, "orders"))
    topic, name = restore.topics["orders"], ProduceOptions(topics=dict(restore.topics)).run
    steps = [
        (6, (topic, "authorization failed"), ("TOPIC", topic, "DESCRIBE")),
        (6, (f"the settings of {topic}", "authorization failed"), ("TOPIC", topic, "DESCRIBE_CONFIGS")),
        (2, (f"the login may not READ, WRITE {topic}: allow it",), ("TOPIC", topic, "READ", "WRITE")),
        (6, (CONTROL_TOPIC, "authorization failed"), ("TOPIC", CONTROL_TOPIC, "DESCRIBE", "CREATE")),
        (6, (CONTROL_TOPIC, "authorization failed"), ("TOPIC", CONTROL_TOPIC, "DESCRIBE_CONFIGS")),
        (6, (f"the run {name} cannot begin", "Transactional Id authorization failed"),
         ("TRANSACTIONAL_ID", f"tieredstore-restore-{name}", "WRITE")),
        (6, ("was not committed", "Topic authorization failed"), ("TOPIC", CONTROL_TOPIC, "READ", "WRITE")),
    ]  # fmt: skip
    for code, words, acl in steps:
        check_refusal(run(restore, "produce", f"orders={topic}"), code, *words)
        assert committed(server, topic, 0) == committed(server, topic, 1) == []
        allow(server, *acl)
    assert run(restore, "produce", f"orders={topic}").code == 0
    restore.check()

    offsets = tmp_path / "groups.json"
    offsets.write_text(json.dumps({"billing": {"orders": {"0": 7}}}))
    moving = run(restore, "groups", name, "--from-file", offsets, "--yes")
    assert moving.code == 6
    assert "billing" in moving.text
    allow(server, "GROUP", "billing", "DESCRIBE", "READ")
    run(restore, "groups", name, "--from-file", offsets, "--yes").clean()


def test_a_plan_names_all_that_a_login_may_not_do(server: KafkaServer, tmp_path: Path) -> None:
    restore = Restore.into(server, mixed_topics(tmp_path, "orders"))
    topic = restore.topics["orders"]
    allow(server, "TOPIC", topic, "DESCRIBE", "DESCRIBE_CONFIGS")
    produce(server, topic, [Produced(b"k", b"foreign")])
    done = run(restore, "produce", f"orders={topic}", "--run", "unread", "--dry-run")
    assert done.code == 2
    bad = [line for line in done.stdout.decode().splitlines() if line.startswith("bad")]
    assert len(bad) == 2, done
    assert bad[0].startswith("bad     run ")
    assert "authorization failed" in bad[0]
    assert f"the login may not READ, WRITE {topic}: allow it" in bad[1]


def test_a_login_that_may_not_create_topics_prepares_nothing(server: KafkaServer, tmp_path: Path) -> None:
    restore, plan = Restore(mixed_topics(tmp_path, "orders"), server, {}), tmp_path / "restore.json"
    check_refusal(
        run(restore, "prepare", "orders", "--plan", plan), 6, "topic orders cannot be created", "Authorization failed"
    )
    assert not plan.exists()
    client = _admin.AdminClient({"bootstrap.servers": server.bootstrap_servers})
    assert "orders" not in client.list_topics(timeout=TIMEOUT_S).topics
