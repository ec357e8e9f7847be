"""Tests of a bucket's lifecycle rules: one is added, the others keep every byte, and the result is read back."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from tests.support.faulty_server.azure import AzureService
from tests.support.faulty_server.gcs import GcsService, as_json
from tests.support.faulty_server.s3 import S3Service
from tests.support.faulty_server.server import FaultyServer
from tests.support.faulty_server.wire import Reply, Request
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.s3_server import S3Server
from tests.support.stores.clouds import make_gcs
from tests.support.stores.faulty_stores import store_on
from tests.support.stores.s3_stores import impatient_store, options_for
from tieredstore.backends.base import BucketLifecycle, LifecycleState, ObjectStore, admin_of
from tieredstore.backends.filesystem import FilesystemObjectStore
from tieredstore.backends.memory import MemoryObjectStore
from tieredstore.backends.s3.client import open_client
from tieredstore.backends.s3.options import AccessKeys, S3Options
from tieredstore.backends.s3.store import S3ObjectStore
from tieredstore.errors import AccessDeniedError, ConfigError, PreconditionFailedError, StoreError
from tieredstore.ops.garbage.lifecycle import (
    abort_rule_name,
    aborting_rule,
    add_abort_rule,
    least_days,
)
from tieredstore.ops.steps import Outcome, Step

HALF_A_DAY_MS = 43_200_000
STRANGE = """<?xml version="1.0" encoding="UTF-8"?>
<ns:LifecycleConfiguration xmlns:ns="http://s3.amazonaws.com/doc/2006-03-01/" xmlns:x="urn:x">
  <!-- by hand -->
  <ns:Rule x:kept="1">
    <ns:ID>ours &amp; theirs</ns:ID> <ns:Filter><ns:And><ns:Prefix>kafka/</ns:Prefix><ns:Tag><ns:Key>k</ns:Key>\
<ns:Value> v </ns:Value></ns:Tag></ns:And></ns:Filter>
    <ns:Status>Enabled</ns:Status>
    <ns:AbortIncompleteMultipartUpload><ns:DaysAfterInitiation>2</ns:DaysAfterInitiation>\
</ns:AbortIncompleteMultipartUpload>
    <ns:AllVersionsExpiration><ns:Days>07</ns:Days><ns:Unheard of="it">\u00fc</ns:Unheard></ns:AllVersionsExpiration>
  </ns:Rule>
  <ns:Rule><ns:ID>old</ns:ID><ns:Prefix>logs/</ns:Prefix><ns:Status>Disabled</ns:Status>\
<ns:Expiration><ns:Date>2026-01-01T00:00:00Z</ns:Date></ns:Expiration></ns:Rule>
</ns:LifecycleConfiguration>
"""


class S3Rules(S3Service):
    """A server that keeps the document unchanged. It loses the rule named ``loses``. With ``ignore`` it ignores
    writes.
    """

    def __init__(self, text: str = "", *, loses: str = "", ignore: bool = False) -> None:
        super().__init__()
        self.text, self.loses, self.ignore = text, loses, ignore
        self.writes: list[Request] = []
        self.answer_to_write = Reply(200)

    def answer(self, request: Request) -> Reply:
        if "lifecycle" not in request.query:
            return super().answer(request)
        if request.method == "GET":
            if not self.text:
                return self.refusal(404, "NoSuchLifecycleConfiguration")
            least = {"x-amz-transition-default-minimum-object-size": "varies_by_storage_class"}
            return Reply(200, self.text.encode(), {"Content-Type": "application/xml", **least})
        self.writes.append(request)
        if not self.ignore and self.answer_to_write.status == 200:
            self.text = re.sub(
                f"<Rule><ID>{self.loses}</ID>.*?</Rule>" if self.loses else "$^", "", request.body.decode()
            )
        return self.answer_to_write


class GcsRules(GcsService):
    """A server that keeps a bucket's properties. Another writer interferes with the first ``racing`` writes."""

    def __init__(self, lifecycle: object = None, *, racing: int = 0, is_deaf: bool = False) -> None:
        super().__init__()
        self.lifecycle, self.version, self.racing, self.is_deaf = lifecycle, 7, racing, is_deaf

    def answer(self, request: Request) -> Reply:
        if not request.path.endswith(f"/b/{self.bucket}"):
            return super().answer(request)
        if request.method == "PATCH":
            if self.racing:
                self.racing, self.version = self.racing - 1, self.version + 1
            if request.query["ifMetagenerationMatch"] != str(self.version):
                return self.refusal(412, "conditionNotMet")
            if not self.is_deaf:
                self.lifecycle = json.loads(request.body)["lifecycle"]
            self.version += 1
        there = {} if self.lifecycle is None else {"lifecycle": self.lifecycle}
        return as_json({"metageneration": str(self.version), **there})


@contextmanager
def on(service: S3Service | GcsService | AzureService) -> Generator[ObjectStore]:
    with FaultyServer(service) as server, closing(store_on(server)) as store:
        yield store


def rules_of(store: ObjectStore) -> BucketLifecycle:
    lifecycle = admin_of(store).lifecycle()
    assert not isinstance(lifecycle, str)
    return lifecycle


def add(store: ObjectStore, prefix: str = "kafka/", *, days: int = 7, dry_run: bool = False) -> Step[str | None]:
    return add_abort_rule(store, prefix, days=days, upload_max_age_ms=HALF_A_DAY_MS, dry_run=dry_run)


def test_unknown_rules_stay_byte_for_byte() -> None:
    service = S3Rules(STRANGE)
    with on(service) as store:
        report = add(store)
        state = rules_of(store).read()
    assert report.outcome is Outcome.ADDED
    assert len(service.writes) == 1
    rule = re.search(r"<ns:Rule><ns:ID>tieredstore-abort.*?</ns:Rule>", service.text, re.DOTALL)
    assert rule is not None
    assert service.text.replace(rule[0], "") == STRANGE
    assert "<ns:Filter><ns:Prefix>kafka/</ns:Prefix></ns:Filter>" in rule[0]
    assert service.writes[0].headers["x-amz-transition-default-minimum-object-size"] == "varies_by_storage_class"
    assert [(one.name, one.is_enabled, one.is_limited) for one in state.rules] == [
        ("ours & theirs", True, True), ("old", False, False), (abort_rule_name("kafka/"), True, False),
    ]  # fmt: skip
    assert (
        state.rules[0].action
        == "AbortIncompleteMultipartUpload (DaysAfterInitiation 2); AllVersionsExpiration (Days 07, Unheard ü)"
    )


def test_a_bucket_without_rules_gets_one_and_a_second_run_nothing() -> None:
    service = S3Rules()
    with on(service) as store:
        planned = add(store, dry_run=True)
        assert (planned.outcome, service.text) == (Outcome.ADDED, "")
        assert add(store).outcome is Outcome.ADDED
        again = add(store, days=3)
        assert again.outcome is Outcome.THERE
        assert "already aborts unfinished uploads after 7 days" in (again.reason or "")
        # A rule for another prefix has another name.
        assert add(store, "other/").item != planned.item
        assert len(rules_of(store).read().rules) == 2
    assert len(service.writes) == 2


@pytest.mark.parametrize(
    "text",
    ["<LifecycleConfiguration/>", "<LifecycleConfiguration></LifecycleConfiguration> \n",
     '<?xml version="1.0"?><LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/" />'],
)  # fmt: skip
def test_a_document_without_rules_is_none(text: str) -> None:
    with on(S3Rules(text)) as store:
        assert add(store).outcome is Outcome.ADDED


@pytest.mark.parametrize(
    "text",
    ["<LifecycleConfiguration>", "<Other></Other>", "{}", "<a>" * 200, "\ufffd",
     "<!DOCTYPE l [<!ENTITY a 'b'>]><l>&a;</l>",
     "<LifecycleConfiguration><Rule><ID>a</ID></Rule></LifecycleConfiguration><!-- behind -->",
     f"<LifecycleConfiguration>{' ' * (1 << 20)}</LifecycleConfiguration>"],
)  # fmt: skip
def test_what_cannot_be_left_as_it_is_is_not_touched(text: str) -> None:
    service = S3Rules(text)
    with on(service) as store, pytest.raises(StoreError):
        add(store)
    assert (service.writes, service.text) == ([], text)


def test_prefixes_and_names_are_escaped() -> None:
    service = S3Rules()
    with on(service) as store:
        assert add(store, "a<b>&'\"/").outcome is Outcome.ADDED
        assert rules_of(store).read().rules[0].prefixes == ("a<b>&'\"/",)


def test_a_rule_that_is_lost_on_the_way_is_told_with_what_it_was() -> None:
    rule = "<Rule><ID>kept</ID><Status>Enabled</Status><Filter/><Expiration><Days>3</Days></Expiration></Rule>"
    kept = f"<LifecycleConfiguration>{rule}</LifecycleConfiguration>"
    with on(S3Rules(kept, loses="kept")) as store, pytest.raises(StoreError, match="has lost the rules kept") as lost:
        add(store)
    assert lost.value.__notes__ == [f"the rules were: {kept}"]


def test_an_answer_alone_is_no_success() -> None:
    with on(S3Rules(ignore=True)) as store, pytest.raises(StoreError, match=r"accepted a rule .* but does not list it"):
        add(store)
    with on(GcsRules(is_deaf=True)) as store, pytest.raises(StoreError, match="but does not list it"):
        add(store)


def test_a_refusal_is_the_stores() -> None:
    service = S3Rules()
    service.answer_to_write = service.refusal(403, "AccessDenied")
    with on(service) as store, pytest.raises(AccessDeniedError):
        add(store)


def test_a_rule_of_our_name_that_is_off_stays_off() -> None:
    service = S3Rules()
    with on(service) as store:
        add(store)
        service.text = service.text.replace("Enabled", "Disabled")
        before = service.text
        with pytest.raises(StoreError, match="existing rules stay"):
            add(store)
    assert service.text == before


def test_days_that_an_upload_may_last_are_refused() -> None:
    assert (least_days(HALF_A_DAY_MS), least_days(HALF_A_DAY_MS + 1), least_days(1)) == (1, 2, 1)
    with on(S3Rules()) as store:
        with pytest.raises(ConfigError, match="6 or more"):
            add_abort_rule(store, "", days=5, upload_max_age_ms=6 * HALF_A_DAY_MS, dry_run=True)
        planned = add_abort_rule(store, "", days=6, upload_max_age_ms=6 * HALF_A_DAY_MS, dry_run=True)
        assert (planned.reason or "").endswith(" after 6 days")


def test_google_keeps_its_rules_and_the_condition_decides() -> None:
    rules = [
        {"action": {"type": "Delete"}, "condition": {"age": 3.5, "unheardOf": [None, {"x": 1e300}]}, "note": "ü"},
        {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 1, "matchesSuffix": [".x"]}},
    ]
    service = GcsRules({"rule": rules, "more": True}, racing=1)
    with on(service) as store:
        assert add(store).outcome is Outcome.ADDED
        state = rules_of(store).read()
    lifecycle: Any = service.lifecycle
    assert lifecycle["rule"][:2] == rules
    assert lifecycle["more"] is True
    assert lifecycle["rule"][2] == {
        "action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7, "matchesPrefix": ["kafka/"]},
    }  # fmt: skip
    assert aborting_rule(state, "kafka/orders") is state.rules[2]
    assert aborting_rule(state, "logs/") is None
    with on(GcsRules(racing=5)) as store, pytest.raises(PreconditionFailedError):
        add(store)


def test_a_change_that_was_done_and_answered_by_a_refusal_is_found() -> None:
    """The client repeats a request whose answer was lost. The service refuses it, because the change is already
    made.
    """

    class Twice(GcsRules):
        def answer(self, request: Request) -> Reply:
            done = super().answer(request)
            return self.refusal(412, "conditionNotMet") if request.method == "PATCH" else done

    with on(Twice()) as store:
        assert add(store).outcome is Outcome.THERE


@pytest.mark.parametrize("lifecycle", [[], {"rule": {}}, {"rule": ["x"]}, "no"])
def test_nonsense_of_googles_is_not_touched(lifecycle: object) -> None:
    with on(GcsRules(lifecycle)) as store, pytest.raises(StoreError, match=r"not understood|lifecycle"):
        add(store)


def test_stores_without_such_rules_say_so(tmp_path: Any) -> None:
    for own in (MemoryObjectStore(), FilesystemObjectStore(tmp_path)):
        report = add(own)
        assert report.outcome is Outcome.NO_RULES
        assert "gc" in (report.reason or "")
    with on(AzureService()) as store:
        report = add(store)
    assert report.outcome is Outcome.NO_RULES
    assert "management" in (report.reason or "")


@pytest.mark.slow
def test_a_service_that_knows_the_rule() -> None:
    """moto's server parses the document and writes it anew."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = S3Options(
            "bucket", region="us-east-1", endpoint_url=f"http://{host}:{port}", path_style=True,
            credentials=AccessKeys("key", "secret"),
        )  # fmt: skip
        with closing(S3ObjectStore(options)) as store:
            client: Any = open_client(options)
            client.create_bucket(Bucket="bucket")
            rule = {"ID": "a", "Status": "Enabled", "Filter": {"Prefix": "x/"}, "Expiration": {"Days": 3}}
            client.put_bucket_lifecycle_configuration(Bucket="bucket", LifecycleConfiguration={"Rules": [rule]})
            assert add(store).outcome is Outcome.ADDED
            assert add(store).outcome is Outcome.THERE
            rules: Any = client.get_bucket_lifecycle_configuration(Bucket="bucket")["Rules"]
            assert [one["ID"] for one in rules] == ["a", abort_rule_name("kafka/")]
            assert rules[1]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    finally:
        server.stop()


@pytest.mark.parametrize("server_name", ["minio", "seaweedfs"])
def test_a_server_that_does_not_know_the_rule_keeps_what_it_has(
    server_name: str, request: pytest.FixtureRequest
) -> None:
    server: S3Server = request.getfixturevalue(server_name)
    bucket, client = server.make_bucket(), server.plain
    rule: Any = {"ID": "a", "Status": "Enabled", "Filter": {"Prefix": "x/"}, "Expiration": {"Days": 3}}
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    with closing(impatient_store(options_for(server, bucket))) as store:
        before = rules_of(store).read()
        outcome = outcome_of(store)
        assert outcome == "added" or "has lost" not in outcome
        after = rules_of(store).read()
    assert {one.content for one in before.rules} <= {one.content for one in after.rules}
    assert [one.name for one in before.rules] == ["a"]


def test_the_emulator_of_google(fake_gcs: GcsServer) -> None:
    with closing(make_gcs(fake_gcs.endpoint_url, fake_gcs.make_bucket())) as store:
        state = rules_of(store).read()
        assert isinstance(state, LifecycleState)
        outcome = outcome_of(store)
    assert outcome == "added" or "does not list it" in outcome, outcome


def outcome_of(store: ObjectStore) -> str:
    """Return the outcome, or the error message."""
    try:
        return add(store).outcome.value
    except StoreError as error:
        return str(error)
