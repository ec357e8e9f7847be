"""Secrets appear in no text: not in settings, errors or logs."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from tests.support.examples import examples
from tests.support.settings_texts import BASE
from tieredstore.config import settings_from
from tieredstore.config.clouds import AwsCredentials
from tieredstore.config.fields import property_fields, wing_groups
from tieredstore.config.names import core_groups
from tieredstore.config.properties import own_properties
from tieredstore.errors import ConfigError

STORES = {
    "s3": {"storage.s3.bucket.name": "b", "storage.s3.region": "r"},
    "gcs": {"storage.gcs.bucket.name": "b"},
    "azure": {"storage.azure.container.name": "c", "storage.azure.endpoint.url": "http://h"},
}
SECRETS = {
    "storage.aws.access.key.id": "s3",
    "storage.aws.secret.access.key": "s3",
    "storage.aws.session.token": "s3",
    "storage.gcs.credentials.json": "gcs",
    "storage.azure.connection.string": "azure",
    "storage.azure.account.key": "azure",
    "storage.azure.sas.token": "azure",
    "storage.proxy.username": "s3",
    "storage.proxy.password": "s3",
}
"""Each secret property, and a store that reads it."""

# letters that no message has, so that a secret, or half of it, is found for sure
secret = st.text("ΞΨΩЖЩЪ€", min_size=2, max_size=30)


def texts_of(error: BaseException) -> str:
    return f"{error!s}{error!r}{''.join(traceback.format_exception(error))}"


def all_texts(error: BaseException) -> Iterator[str]:
    """Yield the texts of an error and of all its causes, shown or not."""
    yield texts_of(error)
    for other in (error.__cause__, error.__context__):
        if other is not None:
            yield from all_texts(other)


def hides(properties: dict[str, str], hidden: str) -> None:
    """Check that the settings, or the error, of ``properties`` do not show ``hidden``."""
    try:
        settings = settings_from(properties)
    except ConfigError as error:
        shown = "".join(all_texts(error))
    else:
        shown = f"{settings!s}{settings!r}{settings.model_dump_json()}"
    assert not set(hidden) & set(shown)


def test_every_property_of_type_password_is_tested_here() -> None:
    kinds = [(name, kind) for group in [*core_groups(), *wing_groups()] for name, _, kind in property_fields(group)]
    assert {name for name, kind in kinds if kind.type == "password"} == set(SECRETS)


@pytest.mark.parametrize("name", SECRETS)
@settings(max_examples=examples(50))  # nine properties, each a hundred times, take seconds
@given(hidden=secret)
def test_a_secret_is_not_shown_alone(name: str, hidden: str) -> None:
    store = SECRETS[name]
    base = {**BASE, "storage.backend.class": store, **STORES[store]}
    hides({**base, name: hidden}, hidden)
    hides({**base, name: hidden, "chunk.size": "0"}, hidden)
    hides({**base, f"{name}x": hidden}, hidden)


@given(hidden=secret)
def test_complete_identities_do_not_show_their_secrets(hidden: str) -> None:
    proxy = {"storage.proxy.host": "h", "storage.proxy.port": "1"}
    proxy |= {"storage.proxy.username": hidden, "storage.proxy.password": hidden}
    keys = {"storage.aws.access.key.id": hidden, "storage.aws.secret.access.key": hidden}
    s3 = {**BASE, "storage.backend.class": "s3", **STORES["s3"], **proxy, **keys, "storage.aws.session.token": hidden}
    hides(s3, hidden)
    credentials = settings_from(s3).s3
    assert credentials is not None
    assert credentials.credentials.secret_access_key == SecretStr(hidden)
    hides({**s3, "storage.aws.credentials.file": "x"}, hidden)
    azure = {**BASE, "storage.backend.class": "azure", **STORES["azure"]}
    hides({**azure, "storage.azure.sas.token": hidden}, hidden)
    hides({**azure, "storage.azure.connection.string": hidden}, hidden)


@given(hidden=secret, store=st.sampled_from(sorted(STORES)))
def test_urls_with_credentials_are_refused_without_showing_them(hidden: str, store: str) -> None:
    base = {**BASE, "storage.backend.class": store, **STORES[store]}
    for url in (f"http://user:{hidden}@host", f"http://u:{hidden}/@h", f"https://h/?sig={hidden}", f"x:{hidden}@h"):
        with pytest.raises(ConfigError, match=r"endpoint\.url is a value that is not shown"):
            settings_from({**base, f"storage.{store}.endpoint.url": url})
        hides({**base, f"storage.{store}.endpoint.url": url}, hidden)


def test_a_stray_line_of_a_key_is_cut() -> None:
    line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDx"
    for stray in (line, f"{line}+/x", '"private_key"' + line):
        with pytest.raises(ConfigError) as caught:
            settings_from({**BASE, stray: ""})
        assert "… (" in str(caught.value)
        assert line[12:] not in "".join(all_texts(caught.value))


@given(hidden=secret)
def test_options_of_a_users_own_store_are_treated_as_secrets(hidden: str) -> None:
    hides({**BASE, "storage.backend.class": "pkg:Store", "storage.token": hidden}, hidden)


@given(hidden=secret)
def test_surrogates_in_a_secret_do_not_show_it(hidden: str) -> None:
    base = {**BASE, "storage.backend.class": "s3", **STORES["s3"]}
    hides({**base, "storage.aws.secret.access.key": f"{hidden}\ud800"}, hidden)


def test_logs_name_properties_and_no_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    given = dict.fromkeys(SECRETS, "Ω") | {"iceberg.catalog.token": "Ω", "metrics.num.samples": "1"}
    settings_from({**BASE, **given, "key.prefix": '"Ψ"'})
    assert "Ω" not in caplog.text


def test_the_parts_themselves_hide_what_they_were_given() -> None:
    with pytest.raises(ValidationError) as caught:
        AwsCredentials.model_validate({"storage.aws.access.key.id": "Ω", "storage.aws.session.tokn": "Ω"})
    assert "Ω" not in str(caught.value)
    own = own_properties({"storage.aws.access.key.id": "Ω"}, "x")
    assert "Ω" not in repr(own)
    assert "storage.aws.access.key.id" in repr(own)


def test_secrets_survive_pickling_for_the_workers() -> None:
    given = {**BASE, "storage.backend.class": "azure", **STORES["azure"], "storage.azure.sas.token": "t"}
    copied = pickle.loads(pickle.dumps(settings_from(given)))
    assert copied.azure.sas_token.get_secret_value() == "t"
