"""Valid values of each property, rules between properties, and existing names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.settings_texts import AZURE, BASE, GCS, S3, error_of
from tieredstore.config import Settings, settings_from
from tieredstore.config.clouds import AwsCredentials, AzureSettings, GcsSettings, S3Settings
from tieredstore.config.encryption import EncryptionProperties
from tieredstore.config.fetch import ChunkCacheSettings, FetchSettings, IndexCacheSettings, ManifestCacheSettings
from tieredstore.config.fields import SettingsGroup, property_fields
from tieredstore.config.jvm import JvmProperties
from tieredstore.config.storage import ProxySettings

PROXY = {**S3, "storage.proxy.host": "h", "storage.proxy.port": "1080"}
DISK = BASE | {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "1", "fetch.chunk.cache.path": "/c"}
RING = {
    **BASE,
    "encryption.enabled": "true",
    "encryption.key.pair.id": "b",
    "encryption.key.pairs": "a , b",
    "encryption.key.pairs.a.public.key.file": "/a.pub",
    "encryption.key.pairs.a.private.key.file": "/a.key",
    "encryption.key.pairs.b.public.key.file": "/b.pub",
    "encryption.key.pairs.b.private.key.file": "/b.key",
}
WHERE: list[tuple[dict[str, str], tuple[type[SettingsGroup], ...]]] = [
    (BASE, (Settings, EncryptionProperties, FetchSettings, ManifestCacheSettings, IndexCacheSettings, JvmProperties)),
    (DISK, (ChunkCacheSettings,)),
    (S3, (S3Settings, AwsCredentials)),
    (GCS, (GcsSettings,)),
    (AZURE, (AzureSettings,)),
    (PROXY, (ProxySettings,)),
]
"""Complete settings, and the groups of settings that are read from them."""

PROPERTIES = [
    (base, name, kind) for base, groups in WHERE for group in groups for name, _, kind in property_fields(group)
]


@pytest.mark.parametrize(("name", "low", "high"), [
    ("chunk.size", 1, 1073741823),
    ("compression.level", 1, 22),
    ("transform.thread.pool.size", 0, 1024),
    ("upload.rate.limit.bytes.per.second", 1048576, 1000000000),
    ("upload.stall.timeout.ms", 1, 2**63 - 1),
    ("upload.max.age.ms", 60_000, 2**63 - 1),
    ("metrics.num.samples", 1, 2**31 - 1),
    ("metrics.sample.window.ms", 1, 2**63 - 1),
    ("fetch.manifest.cache.size", -1, 2**63 - 1),
    ("fetch.manifest.cache.retention.ms", -1, 2**63 - 1),
    ("fetch.manifest.cache.get.timeout.ms", 1, 2**63 - 1),
    ("fetch.manifest.cache.thread.pool.size", 0, 1024),
    ("fetch.indexes.cache.size", -1, 2**63 - 1),
    ("fetch.indexes.cache.retention.ms", -1, 2**63 - 1),
    ("fetch.indexes.cache.get.timeout.ms", 1, 2**63 - 1),
    ("fetch.indexes.cache.thread.pool.size", 0, 1024),
    ("fetch.chunk.cache.size", -1, 2**63 - 1),
    ("fetch.chunk.cache.retention.ms", -1, 2**63 - 1),
    ("fetch.chunk.cache.prefetch.max.size", 0, 2**31 - 1),
    ("fetch.coalesce.max.bytes", 1, 2**31 - 1),
    ("fetch.chunk.min.size", 1, 2**31 - 1),
    ("fetch.parallelism", 1, 1024),
    ("fetch.rate.limit.bytes.per.second", 1048576, 1000000000),
    ("fetch.chunk.cache.get.timeout.ms", 1, 2**63 - 1),
    ("fetch.chunk.cache.thread.pool.size", 0, 1024),
    ("iceberg.catalog.cache.expiration.ms", 1, 2**63 - 1),
    ("storage.s3.multipart.upload.part.size", 5242880, 2147483639),
    ("storage.s3.multipart.upload.parallelism", 1, 64),
    ("storage.s3.api.call.timeout", 1, 2**63 - 1),
    ("storage.s3.api.call.attempt.timeout", 1, 2**63 - 1),
    ("storage.gcs.api.call.timeout", 1, 2**63 - 1),
    ("storage.gcs.api.call.attempt.timeout", 1, 2**63 - 1),
    ("storage.azure.upload.block.size", 102400, 2**31 - 1),
    ("storage.azure.upload.parallelism", 1, 64),
    ("storage.azure.api.call.timeout", 1, 2**63 - 1),
    ("storage.azure.api.call.attempt.timeout", 1, 2**63 - 1),
    ("storage.proxy.port", 1, 65535),
])  # fmt: skip
def test_numbers_are_accepted_up_to_both_ends_and_not_beyond(name: str, low: int, high: int) -> None:
    base = next(base for base, known, _ in PROPERTIES if known == name)
    for text in (str(low), str(high), f"+{high}", f" {high} "):
        settings_from({**base, name: text})
    for text in (str(low - 1), str(high + 1), "", "x", "1.0", "1_0", "1e3", "٣", "9" * 5000):
        assert error_of({**base, name: text}).startswith(f"settings: {name} is ")


def test_all_numbers_are_in_the_test_above() -> None:
    marks = test_numbers_are_accepted_up_to_both_ends_and_not_beyond.pytestmark  # type: ignore[attr-defined]
    tested = {case[0] for case in marks[0].args[1]} | {"storage.gcs.resumable.upload.chunk.size"}
    assert {name for _, name, kind in PROPERTIES if kind.type in {"int", "long"}} == tested


@given(number=st.integers(1, 1073741823))
def test_chunk_size_is_read_exactly(number: int) -> None:
    assert settings_from({**BASE, "chunk.size": str(number)}).chunk_size == number


@given(number=st.integers(-(2**33), 2**33))
def test_the_gcs_chunk_is_a_multiple_of_256_kib(number: int) -> None:
    properties = {**GCS, "storage.gcs.resumable.upload.chunk.size": str(number)}
    if 0 < number < 2**31 and number % 262144 == 0:
        settings_from(properties)
    else:
        assert "262144 or a multiple of it" in error_of(properties)


@pytest.mark.parametrize(("base", "name"), [(base, name) for base, name, kind in PROPERTIES if kind.type == "bool"])
def test_booleans_are_words_of_any_case(base: dict[str, str], name: str) -> None:
    if not name.startswith("encryption."):
        settings_from({**base, "compression.enabled": "true", name: " TRUE "})
    settings_from({**base, name: "False"})
    for text in ("", "yes", "1", "on", "true false"):
        assert f"{name} is {text!r}; it must be a bool: true or false" in error_of({**base, name: text})


@pytest.mark.parametrize(
    ("base", "name"), [(base, name) for base, name, kind in PROPERTIES if kind.valid.startswith("not empty")]
)
def test_empty_texts_are_refused_where_they_mean_nothing(base: dict[str, str], name: str) -> None:
    assert f"{name} is " in error_of({**base, name: " "})


@pytest.mark.parametrize(
    ("base", "name", "right", "wrong"),
    [
        (S3, "storage.s3.storage.class", "GLACIER_IR", ["glacier_ir", "", "X"]),
        (S3, "storage.s3.compatibility", "s3-compatible", ["AWS", "", "minio"]),
        (S3, "storage.s3.listing.order", "by-folder", ["by_key", "", "AUTO"]),
        (BASE, "metrics.recording.level", "TRACE", ["trace", ""]),
        (BASE, "custom.metadata.fields.include", "OBJECT_KEY,OBJECT_KEY", ["remote_size", "A", "REMOTE_SIZE,,"]),
        (BASE, "segment.format", "kafka", ["Kafka", ""]),
        (DISK, "fetch.chunk.cache.class", "memory", ["Disk", "", "com.example.Cache"]),
        (DISK, "fetch.chunk.cache.path", "/x", ["", "a\0b"]),
    ],
)
def test_words_have_exactly_their_case(base: dict[str, str], name: str, right: str, wrong: list[str]) -> None:
    settings_from({**base, name: right})
    for text in wrong:
        assert f"{name} is {text!r}; it must be " in error_of({**base, name: text})


@pytest.mark.parametrize(
    ("base", "name"), [(base, name) for base, name, _ in PROPERTIES if name.endswith("endpoint.url")]
)
def test_endpoints_are_urls_with_a_host(base: dict[str, str], name: str) -> None:
    for right in ("http://h", "https://h.example:9000/path", "http://[::1]:80", "http://127.0.0.1:1"):
        settings_from({**base, name: right})
    for end in ("x", "99999", "0"):
        assert "an http:// or https:// URL" in error_of({**base, name: f"http://h:{end}"})
    for wrong in ("", "h:9000", "ftp://h", "http://", "http://[", "http://a b"):
        assert "an http:// or https:// URL" in error_of({**base, name: wrong})


def test_lists_are_split_trimmed_and_without_repeats() -> None:
    given = {**BASE, "custom.metadata.fields.include": " OBJECT_KEY ,REMOTE_SIZE,OBJECT_KEY"}
    assert settings_from(given).custom_metadata_fields == ("OBJECT_KEY", "REMOTE_SIZE")
    assert settings_from({**BASE, "custom.metadata.fields.include": " "}).custom_metadata_fields == ()


def test_the_store_is_what_no_default_names() -> None:
    assert settings_from({"storage.backend.class": "memory"}).chunk_size == 4 << 20
    assert error_of({"chunk.size": "7"}).startswith("settings: storage.backend.class is missing; it must be ")


def test_the_heuristic_is_on_where_compression_is() -> None:
    given = {**BASE, "compression.heuristic.enabled": "true", "compression.enabled": "true"}
    assert settings_from(given).compression_heuristic_enabled


def test_the_key_ring_is_read_whole() -> None:
    ring = settings_from(RING).encryption
    assert ring is not None
    assert ring.key_pair_id == "b"
    assert [(pair.id, str(pair.public_key_file), str(pair.private_key_file)) for pair in ring.key_pairs] == [
        ("a", "/a.pub", "/a.key"),
        ("b", "/b.pub", "/b.key"),
    ]


def test_without_encryption_there_is_no_ring_even_if_it_is_described() -> None:
    assert settings_from({**RING, "encryption.enabled": "false"}).encryption is None
    assert settings_from({**BASE, "encryption.key.pairs.z.public.key.file": "/z"}).encryption is None


@pytest.mark.parametrize("missing", sorted(set(RING) - set(BASE) - {"encryption.enabled"}))
def test_each_property_of_the_key_ring_is_required(missing: str) -> None:
    assert f"{missing} is missing" in error_of({name: text for name, text in RING.items() if name != missing})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"encryption.key.pair.id": "c"}, "encryption.key.pair.id is 'c', which encryption.key.pairs does not list"),
        ({"encryption.key.pair.id": "a:b"}, "encryption.key.pair.id is 'a:b'; it must be a string: an id without ':'"),
        ({"encryption.key.pair.id": " "}, "encryption.key.pair.id is ''; it must be"),
        ({"encryption.key.pairs": "a,b:c"}, "encryption.key.pairs is 'a,b:c'; it must be a list: ids without ':'"),
        ({"encryption.key.pairs": "a,,b"}, "encryption.key.pairs is 'a,,b'; it must be"),
        ({"encryption.key.pairs": ""}, "encryption.key.pairs is missing"),
        ({"encryption.key.pairs.c.public.key.file": "x"}, "key.pairs.c.public.key.file belongs to a key pair that"),
        ({"encryption.key.pairs.a.public.key": "x"}, "did you mean encryption.key.pairs.a.public.key.file"),
    ],
)
def test_each_rule_of_the_key_ring(change: dict[str, str], sentence: str) -> None:
    assert sentence in error_of({**RING, **change})


@pytest.mark.parametrize(
    ("base", "change", "sentence"),
    [
        (S3, {"storage.aws.access.key.id": "x"}, "aws.access.key.id is set without storage.aws.secret.access.key"),
        (S3, {"storage.aws.secret.access.key": "x"}, "secret.access.key is set without storage.aws.access.key.id"),
        (S3, {"storage.aws.session.token": "x"}, "storage.aws.session.token is set without storage.aws.access.key.id"),
        (S3 | {"storage.aws.access.key.id": "x", "storage.aws.secret.access.key": "x"},
         {"storage.aws.credentials.file": "x"}, "storage.aws.credentials.file cannot be set together with storage.aws"),
        (BASE, {"storage.aws.credentials.provider.class": "com.x.Y"}, "tieredstore cannot run a Java class"),
        (BASE, {"segment.format": "iceberg"}, "in Kafka's own format; set segment.format to kafka"),
        (BASE, {"storage.backend.class": "filesystem"}, "storage.root is missing"),
        (BASE, {"storage.s3.bucket.nam": "x"}, "did you mean storage.s3.bucket.name"),
        (BASE, {"compression.heuristic.enabled": "true"}, "heuristic.enabled is true, but compression.enabled is"),
        (GCS, {"storage.gcs.credentials.json": "{}"}, "set exactly one of the three"),
        (GCS, {"storage.gcs.credentials.path": "x"}, "set exactly one of the three"),
        (AZURE, {"storage.azure.connection.string": "x"}, "name cannot be set together with storage.azure.c"),
        (PROXY, {"storage.proxy.username": "x"}, "storage.proxy.username is set without storage.proxy.password"),
        (PROXY, {"storage.proxy.password": "x"}, "storage.proxy.password is set without storage.proxy.username"),
        (S3, {"storage.proxy.port": "1"}, "storage.proxy.host is missing"),
        (BASE, {"fetch.chunk.cache.class": "memory"}, "fetch.chunk.cache.size is missing"),
        (BASE, {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "1"}, "fetch.chunk.cache.path is missing"),
    ],
)  # fmt: skip
def test_each_rule_of_stores_and_caches(base: dict[str, str], change: dict[str, str], sentence: str) -> None:
    settings_from(base)
    assert sentence in error_of({**base, **change})


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({}, "storage.azure.account.name is missing"),
        ({"account.key": "k"}, "storage.azure.account.name is missing"),
        ({"sas.token": "s"}, "storage.azure.sas.token is set without storage.azure.account.name or"),
        ({"sas.token": "s", "account.key": "k"}, "account.key is set without storage.azure.account.name"),
        ({"connection.string": "c", "account.key": "k"}, "storage.azure.account.key cannot be set together"),
        ({"connection.string": "c", "sas.token": "k"}, "storage.azure.sas.token cannot be set together"),
        ({"connection.string": "c", "endpoint.url": "http://h"}, "storage.azure.endpoint.url cannot be set together"),
        ({"connection.string": "c"}, None),
        ({"sas.token": "s", "endpoint.url": "http://h"}, None),
        ({"account.name": "a", "account.key": "k", "sas.token": "s"}, None),
    ],
)
def test_azure_has_one_way_in(parts: dict[str, str], sentence: str | None) -> None:
    base = {name: text for name, text in AZURE.items() if name != "storage.azure.account.name"}
    given = {**base, **{f"storage.azure.{name}": text for name, text in parts.items()}}
    if sentence is None:
        assert settings_from(given).azure is not None
    else:
        assert sentence in error_of(given)


def test_gcs_needs_credentials_and_false_counts_as_one() -> None:
    without = {name: text for name, text in GCS.items() if name != "storage.gcs.credentials.default"}
    assert "set exactly one of the three" in error_of(without)
    anonymous = settings_from({**without, "storage.gcs.credentials.default": "false"}).gcs
    assert anonymous is not None
    assert anonymous.credentials_default is False


def test_only_the_selected_store_has_settings() -> None:
    cloud = {**S3, **GCS, **AZURE, "storage.proxy.host": "h", "storage.proxy.port": "1"}
    s3 = settings_from({**cloud, "storage.backend.class": "s3"})
    assert (s3.s3 is not None, s3.gcs, s3.azure, s3.proxy is not None) == (True, None, None, True)
    memory = settings_from({**cloud, "storage.backend.class": "memory", "storage.azure.endpoint.url": "no url"})
    assert (memory.s3, memory.gcs, memory.azure, memory.proxy) == (None, None, None, None)
