"""Schemas from a registry: each is requested once, with its references, and each error is one sentence."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.network.key_services import Answer, make_certificate, serving
from tests.support.network.schema_registry_server import RegistryService, framed, written
from tieredstore import schema_registry
from tieredstore.errors import (
    ConfigError,
    InvalidValueError,
    RegistryDeniedError,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from tieredstore.schema_registry import SchemaRegistry
from tieredstore.values import Avro

MONEY: dict[str, Any] = {
    "type": "record", "name": "Money", "namespace": "bank",
    "fields": [{"name": "amount", "type": "long"}, {"name": "unit", "type": {"type": "enum", "name": "Unit",
                "symbols": ["EUR", "USD"]}}],
}  # fmt: skip
ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "price", "type": "bank.Money"}, {"name": "paid", "type": ["null", "bank.Money"]}],
}  # fmt: skip
WHOLE: dict[str, Any] = {
    **ORDER, "fields": [{"name": "price", "type": MONEY}, {"name": "paid", "type": ["null", "bank.Money"]}],
}  # fmt: skip


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryService]:
    monkeypatch.setattr(schema_registry, "RETRY_POLICY", replace(schema_registry.RETRY_POLICY, sleep=lambda _: None))
    with serving(RegistryService()) as running:
        assert isinstance(running, RegistryService)
        yield running


def place(row: int) -> str:
    return f"the value at offset {row} of orders-0"


def column(*messages: bytes) -> Any:
    return pa.array(messages, pa.binary())


def test_messages_are_read_by_the_schema_of_their_id_and_resolved_to_the_latest(service: RegistryService) -> None:
    old = service.register(
        "orders-value", {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    )
    fields = [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}]
    new_schema = {"type": "record", "name": "Order", "fields": fields}
    new = service.register("orders-value", new_schema)
    with SchemaRegistry(service.url) as registry:
        kind = pickle.loads(pickle.dumps(Avro(registry.latest("orders-value"), registry)))
    first = framed(
        old, written({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}, {"id": 5})
    )
    messages = [first, framed(new, written(new_schema, {"id": 6, "note": "x"})), first]
    rows: Any = kind.convert(column(*messages), place)
    assert rows.to_pylist() == [{"id": 5, "note": "-"}, {"id": 6, "note": "x"}, {"id": 5, "note": "-"}]
    assert kind.convert(column(first), place).to_pylist() == [{"id": 5, "note": "-"}]
    asked = ["GET /subjects/orders-value/versions/latest", f"GET /schemas/ids/{old}", f"GET /schemas/ids/{new}"]
    assert service.requests == asked
    kind.lookup.close()


def test_a_schema_may_refer_to_others(service: RegistryService) -> None:
    service.register("money", MONEY)
    number = service.register("orders/value", ORDER, ("bank.Money", "money", 1))
    with SchemaRegistry(service.url) as registry:
        kind = Avro(registry.latest("orders/value"), registry)
        assert kind.arrow_type == Avro(WHOLE).arrow_type
        datum = {"price": {"amount": 5, "unit": "USD"}, "paid": {"amount": 4, "unit": "EUR"}}
        assert kind.convert(column(framed(number, written(WHOLE, datum))), place).to_pylist() == [datum]
    assert service.requests[0] == "GET /subjects/orders%2Fvalue/versions/latest"


def test_references_without_an_end_are_refused(service: RegistryService) -> None:
    service.register("a", ORDER, ("b", "b", 1))
    service.register("b", MONEY, ("a", "a", 1))
    service.register("c", ORDER, ("x", "money", "first"))
    with SchemaRegistry(service.url) as registry:
        with pytest.raises(ConfigError, match="refers to itself"):
            registry.latest("a")
        with pytest.raises(RegistryError, match="an invalid reference of the subject c"):
            registry.latest("c")


def test_references_are_bounded_in_length_and_in_time_together(
    service: RegistryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(100):
        name = f"p{at}"
        text = json.dumps({"type": "record", "name": name, "fields": list[object](), "doc": "x" * 500_000})
        service.register(name, text)
    service.register("wide", ORDER, *((f"p{at}", f"p{at}", 1) for at in range(100)))
    too_long = r"wide .* more than 8,000,000 characters"
    with SchemaRegistry(service.url) as registry, pytest.raises(ConfigError, match=too_long):
        registry.latest("wide")
    assert len(service.requests) < 20

    # Each answer arrives well within an attempt's timeout, but all answers together would take an hour.
    now = [0.0]
    policy = replace(schema_registry.RETRY_POLICY, monotonic=lambda: now[0])
    monkeypatch.setattr(schema_registry, "RETRY_POLICY", policy)
    monkeypatch.setattr(
        schema_registry, "read_body", lambda response, read=schema_registry.read_body: _after(now, read(response))
    )
    service.requests.clear()
    for at in range(100):
        service.register(f"q{at}", json.dumps({**MONEY, "name": f"Q{at}"}))
    service.register("slow", ORDER, *((f"q{at}", f"q{at}", 1) for at in range(100)))
    with SchemaRegistry(service.url) as registry, pytest.raises(RegistryUnavailableError):
        registry.latest("slow")
    assert len(service.requests) <= policy.timeout_s / 15 + 1


def _after(now: list[float], body: bytes) -> bytes:
    now[0] += 15.0
    return body


@pytest.mark.parametrize(
    "answer",
    [b'{"schema": "1", "references": 5}', b'{"schema": "1", "references": [{"subject": "s", "version": 1e400}]}',
     b'{"schema": "1", "references": ["s"]}'],
    ids=["number", "endless", "text"],
)  # fmt: skip
def test_references_that_are_none_are_a_sentence(service: RegistryService, answer: bytes) -> None:
    service.planned.append(Answer(200, answer))
    with (
        SchemaRegistry(service.url) as registry,
        pytest.raises(RegistryError, match="an invalid reference of the schema 1"),
    ):
        registry(1)


def test_an_id_without_a_schema_is_asked_for_once_a_minute(
    service: RegistryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(
        schema_registry, "RETRY_POLICY", replace(schema_registry.RETRY_POLICY, monotonic=lambda: now[0])
    )
    service.register("j", "{}", kind="JSON")
    with SchemaRegistry(service.url) as registry:
        kind = Avro("long", registry, "null")
        for _ in range(3):
            rows: Any = kind.convert(column(*(framed(number, b"\x02") for number in (2, 1, 2, 1) * 50)), place)
            assert rows.null_count == len(rows)
        assert sorted(service.requests) == ["GET /schemas/ids/1", "GET /schemas/ids/2"]
        # Register the missing subject before the next request is due.
        service.register("n", '"long"')
        now[0] += 61.0
        assert kind.convert(column(framed(2, b"\x02")), place).to_pylist() == [1]


def test_what_is_wrong_with_a_message_names_it_and_the_registrys_troubles_are_its_own(service: RegistryService) -> None:
    number = service.register("n", '"long"')
    good = framed(number, written("long", 7))
    with SchemaRegistry(service.url) as registry:
        for wrong, sentence in (
            (framed(99, b"\x02"), r"offset 1 of orders-0 is not Avro of the schema \(the registry has no schema 99\)"),
            (framed(number, b"\xff"), rf"offset 1 .* \(its schema is {number}\)"),
            (b"\x01plain", r"offset 1 .* \(it does not begin with the id of a schema\)"),
        ):
            with pytest.raises(InvalidValueError, match=sentence):
                Avro("long", registry).convert(column(good, wrong), place)
            rows: Any = Avro("long", registry, "null").convert(column(wrong, good), place)
            assert rows.to_pylist() == [None, 7]
        service.register("j", "{}", kind="JSON")
        # A message whose schema has another type counts as a bad message.
        with pytest.raises(InvalidValueError, match=r"offset 1 .* the schema 2 of the registry has the type JSON"):
            Avro("long", registry).convert(column(good, framed(2, b"{}")), place)
        assert Avro("long", registry, "null").convert(column(framed(2, b"{}"), good), place).to_pylist() == [None, 7]
        with pytest.raises(SchemaNotFoundError, match="does not have the subject m"):
            registry.latest("m")


@pytest.mark.parametrize(
    ("answer", "error", "tries"),
    [
        (Answer(503), RegistryUnavailableError, 4),
        (Answer(429), RegistryUnavailableError, 4),
        (Answer(403), RegistryDeniedError, 1),
        (Answer(302), RegistryError, 1),
        (Answer(200, b"<html>"), RegistryError, 1),
        (Answer(200, b"[" * 100_000), RegistryError, 1),
        (Answer(200, b'{"schema": 5}'), RegistryError, 1),
        (Answer(200, b" " * ((8 << 20) + 1)), RegistryError, 1),
    ],
    ids=["busy", "throttled", "denied", "elsewhere", "page", "deep", "no text", "endless"],
)
def test_refusals_are_sentences(service: RegistryService, answer: Answer, error: type[Exception], tries: int) -> None:
    service.register("n", '"long"')
    with SchemaRegistry(service.url) as registry:
        service.planned.extend([answer] * tries)
        with pytest.raises(error) as caught:
            registry(1)
        assert (type(caught.value), len(service.requests)) == (error, tries)
        # The next call asks the registry again.
        assert registry(1) == '"long"'
        service.planned.append(Answer(503))
        assert registry.latest("n") == '"long"'


@pytest.mark.slow
def test_an_answer_that_drips_ends_with_the_deadline(service: RegistryService, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = replace(schema_registry.RETRY_POLICY, attempts=1, attempt_timeout_s=0.5)
    monkeypatch.setattr(schema_registry, "RETRY_POLICY", policy)
    service.planned.append(Answer(200, b" " * 10_000, drip_s=0.05))
    with SchemaRegistry(service.url) as registry, pytest.raises(RegistryUnavailableError, match="did not answer"):
        registry(1)


def test_one_of_several_addresses_is_enough(service: RegistryService) -> None:
    service.register("n", '"long"')
    with SchemaRegistry(f"http://127.0.0.1:1, {service.url}/") as registry:
        assert registry.latest("n") == '"long"'


def test_who_asks_is_said_by_properties_or_by_the_address(service: RegistryService) -> None:
    service.register("n", '"long"')
    service.authorization = f"Basic {base64.b64encode(b'me:p@ss:word').decode()}"
    login = {"schema.registry.basic.auth.user.info": "me:p@ss:word", "schema.registry.url": service.url}
    with_user = service.url.replace("//", "//me:p%40ss%3Aword@")
    for registry in (SchemaRegistry(properties=login), SchemaRegistry(with_user)):
        assert registry.latest("n") == '"long"'
        assert "word" not in repr(registry) + repr(registry.settings)
        registry.close()
    with (
        SchemaRegistry(service.url.replace("//", "//me:wrong@")) as refused,
        pytest.raises(RegistryDeniedError) as caught,
    ):
        refused.latest("n")
    assert "wrong" not in str(caught.value)
    service.authorization = "Bearer t0ken"
    with SchemaRegistry(service.url, {"bearer.auth.token": "t0ken"}) as registry:
        assert registry(1) == '"long"'


def test_a_certificate_has_to_be_trusted(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    service = RegistryService()
    service.register("n", '"long"')
    with serving(service, certificate=certificate):
        with SchemaRegistry(service.url, {"ssl.ca.location": str(certificate[0])}) as registry:
            assert registry(1) == '"long"'
        with SchemaRegistry(service.url) as registry, pytest.raises(RegistryDeniedError, match="certificate"):
            registry(1)


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({}, "no schema registry is named"),
        ({"url": "registry:8081"}, "not an address"),
        ({"url": "http://[registry"}, "not an address"),
        ({"url": "http://u:secret@r/?x=1"}, "not an address"),
        ({"url": "http://r", "basic.auth.user": "me"}, "'basic.auth.user' is not a property"),
        ({"url": "http://r", "basic.auth.user.info": "me"}, "user:password"),
        ({"url": "http://r", "basic.auth.user.info": "a:b", "bearer.auth.token": "t"}, "exclude each other"),
        ({"url": "http://r", "ssl.key.location": "k"}, "belong together"),
    ],
    ids=str,
)
def test_properties_that_cannot_be_are_refused(properties: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        SchemaRegistry(properties=properties)
    assert "secret" not in str(caught.value)
