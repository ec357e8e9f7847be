"""Properties of Kafka clients: Java's names are accepted, Spark's refusals kept, and faults reported in one
sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.kafka.live_reads import read_live
from tieredstore.errors import ConfigError
from tieredstore.live import LiveCluster
from tieredstore.live.properties import client_configuration, login_of_jaas

SERVERS = {"bootstrap.servers": "broker:9092"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECRET = "hush-hush"


def configured(**properties: str) -> dict[str, str]:
    return client_configuration({**SERVERS, **properties}, "read_committed")


def check_refusal(properties: dict[str, str], said: str) -> None:
    """Check that both entry points raise this error before they connect, and that the message contains no secret."""
    sentences: set[str] = set()
    for door in (
        lambda: LiveCluster({**SERVERS, **properties}, isolation="read_committed"),
        lambda: read_live({**SERVERS, **properties}, "t", 0, 0, 1, isolation="read_committed"),
    ):
        with pytest.raises(ConfigError, match=said) as raised:
            door()
        sentences.add(str(raised.value))
    (sentence,) = sentences
    assert "\n" not in sentence
    assert SECRET not in sentence


@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)
def test_what_sparks_kafka_source_refuses_is_refused(name: str) -> None:
    check_refusal({name: "earliest"}, f"the client property {name} cannot be set: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [("metric.reporters", "a.B"), ("plugin.library.paths", "x.so"), ("enable.partition.eof", "false")],
)
def test_what_would_load_code_or_break_a_read_is_refused(name: str, value: str) -> None:
    check_refusal({name: value}, f"the client property {name} cannot be set: ")


@pytest.mark.parametrize("name", ["fetch.max.bites", "error_cb", "logger", "default.topic.config", "on_commit", ""])
def test_an_unknown_name_is_one_sentence_that_names_it(name: str) -> None:
    check_refusal({name: "1"}, f'(the client property {name} is not known|No such configuration property: "{name}")$')


@pytest.mark.parametrize(
    ("name", "value"), [("fetch.min.bytes", "many"), ("security.protocol", "HTTP"), ("client.dns.lookup", "never")]
)
def test_a_wrong_value_is_one_sentence_that_names_its_property(name: str, value: str) -> None:
    check_refusal({name: value}, f'Invalid value .*for configuration property "{name}"')


def test_without_servers_nothing_can_be_read() -> None:
    for properties in ({}, {"bootstrap.servers": ""}):
        with pytest.raises(ConfigError, match=r"bootstrap\.servers is not set"):
            LiveCluster(properties, isolation="read_committed")


def test_the_isolation_is_one_of_two_and_must_agree() -> None:
    assert configured(**{"isolation.level": "read_committed"})["isolation.level"] == "read_committed"
    check_refusal(
        {"isolation.level": "read_uncommitted"}, "isolation.level is read_uncommitted, but .* read is read_committed"
    )
    with pytest.raises(ConfigError, match="must be read_uncommitted or read_committed"):
        LiveCluster(SERVERS, isolation="serializable")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_time_out_is_a_time(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="timeout_s is"):
        LiveCluster(SERVERS, isolation="read_committed", timeout_s=timeout_s)
    with pytest.raises(ConfigError, match="timeout_s is"):
        read_live(SERVERS, "t", 0, 0, 1, isolation="read_committed", timeout_s=timeout_s)


def test_javas_names_become_librdkafkas() -> None:
    java = {
        "fetch.max.wait.ms": "100",
        "request.timeout.ms": "7000",
        "receive.buffer.bytes": "-1",
        "send.buffer.bytes": "4096",
        "ssl.endpoint.identification.algorithm": "HTTPS",
    }
    ours = {
        "fetch.wait.max.ms": "100",
        "socket.timeout.ms": "7000",
        "socket.receive.buffer.bytes": "0",
        "socket.send.buffer.bytes": "4096",
        "ssl.endpoint.identification.algorithm": "https",
    }
    configuration = configured(**java)
    assert {name: configuration[name] for name in ours} == ours
    assert not configuration.keys() & (java.keys() - ours.keys())
    LiveCluster({**SERVERS, **java}, isolation="read_committed")


def test_what_has_no_meaning_here_is_taken_without_effect() -> None:
    meaningless = {"max.poll.records": "1", "partition.assignment.strategy": "a.B", "session.timeout.ms": "1"}
    assert configured(**meaningless) == configured()
    LiveCluster({**SERVERS, **meaningless}, isolation="read_committed")


def test_a_group_and_sizes_of_the_users_own_are_kept() -> None:
    assert configured()["group.id"] == "tieredstore"
    chosen = configured(**{"group.id": "mine", "max.partition.fetch.bytes": "5000", "check.crcs": "false"})
    assert chosen["group.id"] == "mine"
    assert chosen["max.partition.fetch.bytes"] == "5000"
    assert "fetch.message.max.bytes" not in chosen
    assert chosen["check.crcs"] == "false"


@given(username=st.text(), password=st.text(), quote=st.sampled_from("\"'"))
@example(username="=", password=";", quote='"')
def test_any_login_survives_being_quoted(username: str, password: str, quote: str) -> None:
    def quoted(text: str) -> str:
        return quote + text.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote

    text = f"{PLAIN}  required\n username={quoted(username)} password = {quoted(password)} ;"
    assert login_of_jaas(text, "PLAIN") == {"sasl.username": username, "sasl.password": password}


@given(st.text(alphabet="ab\"'=; \\\n", max_size=40))
def test_any_text_is_a_login_or_one_sentence(text: str) -> None:
    try:
        login = login_of_jaas(f"{PLAIN} required {text}", "PLAIN")
    except ConfigError:
        return
    assert login.keys() == {"sasl.username", "sasl.password"}


def test_a_shaded_module_and_bare_words_are_taken() -> None:
    text = f"kafkashaded.{PLAIN} required username=alice password={SECRET};"
    assert login_of_jaas(text, "PLAIN") == {"sasl.username": "alice", "sasl.password": SECRET}


def test_a_login_by_oauth_names_its_client() -> None:
    text = f"x.OAuthBearerLoginModule required clientId='me' clientSecret='{SECRET}' scope='read';"
    assert login_of_jaas(text, "OAUTHBEARER") == {
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.scope": "read",
        "sasl.oauthbearer.method": "oidc",
    }


LOGIN = f'{PLAIN} required username="u" password="{SECRET}"'


@pytest.mark.parametrize(
    ("jaas", "said"),
    [
        (LOGIN, 'is not of the form "<login module> required'),
        (f"{LOGIN}; {LOGIN};", "for one module"),
        (f'{LOGIN} password="{SECRET}";', "has the option password twice"),
        (f'{PLAIN} required username="u" password="{SECRET};', "an unclosed quote"),
        (f"{PLAIN} required username {SECRET};", "something other than <name>="),
        (f'{PLAIN} required username="u";', "has no password: PlainLoginModule needs username and password"),
        (
            f'{LOGIN} tokenauth="true";',
            "has the unsupported option tokenauth; PlainLoginModule takes username, password",
        ),
        (f'com.sun.Krb5LoginModule required keyTab="{SECRET}";', "names the login module Krb5LoginModule"),
        (f'x.ScramLoginModule required username="u" password="{SECRET}";', "sasl.mechanism must be SCRAM-SHA-256 or"),
        ("x" * 70_000, "more than 65536 characters"),
        ("", "is not of the form"),
    ],
)
def test_a_login_that_cannot_be_used_is_one_sentence_without_its_secret(jaas: str, said: str) -> None:
    check_refusal({"sasl.jaas.config": jaas, "sasl.mechanism": "PLAIN", "security.protocol": "SASL_SSL"}, said)


def test_a_login_without_a_mechanism_says_which_to_name() -> None:
    check_refusal({"sasl.jaas.config": f"{LOGIN};"}, "for which sasl.mechanism must be PLAIN")


@pytest.mark.parametrize("store", ["ssl.truststore", "ssl.keystore"])
def test_a_jks_file_is_refused_with_the_way_out(store: str, tmp_path: Path) -> None:
    jks = tmp_path / "store.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed" + bytes(40))
    for more in ({}, {f"{store}.type": "JKS"}):
        said = rf"{store}.location names a JKS file, .* with keytool -importkeystore .*PKCS12, or use PEM files"
        check_refusal({f"{store}.location": str(jks), f"{store}.password": SECRET, **more}, said)


def test_a_store_that_is_not_what_it_should_be_is_said(tmp_path: Path) -> None:
    file, location = tmp_path / "store", "ssl.truststore.location"
    check_refusal({location: str(file)}, f"{location} cannot be read: No such file")
    file.write_bytes(b"something else")
    secret = {"ssl.truststore.password": SECRET}
    check_refusal(
        {location: str(file), **secret}, f"{location} is not a PEM or PKCS12 file, or ssl.truststore.password is wrong"
    )
    check_refusal({location: str(file), "ssl.truststore.type": "PEM"}, "type is PEM, but the file of .* is")
    check_refusal({location: str(file), "ssl.truststore.type": "BKS"}, "type is BKS; only PEM and PKCS12 are supported")
    check_refusal({"ssl.ca.location": str(tmp_path / "absent")}, "ssl.ca.location cannot be read")
    with file.open("wb") as large:
        large.truncate(17 * 2**20)
    check_refusal({location: str(file)}, "is larger than 16777216 bytes, so it is no key store")
