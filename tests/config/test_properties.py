"""Files and mappings: Java's syntax, the prefix rule, quotes, relative paths."""

from __future__ import annotations

import logging
import pickle
import re
from datetime import timedelta
from pathlib import Path

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.settings_texts import BASE, error_of
from tieredstore.config import load_settings, read_properties, settings_from
from tieredstore.config.properties import join_lines
from tieredstore.errors import ConfigError
from tieredstore.model import SettingValue

PREFIXED = {f"rsm.config.{name}": value for name, value in BASE.items()}

# text that Java can hold in a file: no halves of surrogate pairs
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "rsm.properties"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("iso-8859-1"))
    return path


@given(properties=st.dictionaries(text.filter(bool), text, max_size=8))
def test_all_texts_in_javas_syntax_are_read_back_in_order(
    properties: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("p"), javaproperties.dumps(properties, timestamp=False))
    assert list(read_properties(path).items()) == list(properties.items())


def test_every_form_of_java_syntax_is_understood(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# comment = no\n! another: no\n\n"
        "  a=1\nb : 2\nc 3\nd\\ d=4\\\n   5\\\r\n\t6\ne=\\u00e9\\t\\q\nf\ng==x\r\nh=\xe9\n"
        "i=trailing  \nj=C:\\\\x\na=last",
    )
    expected = {"b": "2", "c": "3", "d d": "456", "e": "é\tq", "f": "", "g": "=x", "h": "é", "i": "trailing  "}
    assert read_properties(path) == {**expected, "j": "C:\\x", "a": "last"}


def test_the_last_of_two_equal_names_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "chunk.size=1\nstorage.backend.class=memory\nchunk.size=2\n")
    assert load_settings(path).chunk_size == 2
    assert list(read_properties(path)) == ["storage.backend.class", "chunk.size"]


def test_bytes_are_latin1_and_utf8_is_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path, "storage.backend.class=memory\nchunk.size=1\nkey.prefix=é/".encode())
    assert load_settings(path).key_prefix == "\xc3\xa9/"


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    for path, reason in [
        (tmp_path / "absent.properties", "no such settings file"),
        (tmp_path, "is a folder"),
        (tmp_path / "nul\0.properties", "cannot be read"),
        (write(tmp_path, "x=1") / "y", "cannot be read: Not a directory"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load_settings(path)
        assert str(path) in str(caught.value)
        assert reason in str(caught.value)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "segment.log"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="not a settings file"):
        load_settings(path)


@pytest.mark.parametrize("escape", ["\\u12", "\\u12g4", "\\u", "\\u-123"])
def test_a_malformed_escape_is_placed_without_its_text(tmp_path: Path, escape: str) -> None:
    with pytest.raises(ConfigError, match=r"after chunk\.size is not followed by four hexadecimal") as caught:
        load_settings(write(tmp_path, f"chunk.size=1\nstorage.aws.secret.access.key=hush{escape}\n"))
    assert "hush" not in str(caught.value)
    assert escape[2:] == "" or escape not in str(caught.value)
    with pytest.raises(ConfigError, match="before the first property"):
        load_settings(write(tmp_path, f"a{escape}=1"))


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_read(tmp_path: Path) -> None:
    head = "storage.backend.class=memory\nchunk.size=1\nkey.prefix="
    assert load_settings(write(tmp_path, head + "\\ud83d\\ude00/")).key_prefix == "😀/"
    with pytest.raises(ConfigError, match=r"key\.prefix holds a .u escape that is half of a surrogate pair"):
        load_settings(write(tmp_path, head + "\\ud83d/"))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("chunk.size", 1 << 20, "1048576"),
        ("compression.enabled", True, "true"),
        ("storage.root", Path("some/store"), "some/store"),
        ("fetch.manifest.cache.retention.ms", timedelta(minutes=1), "60000"),
        ("custom.metadata.fields.include", ["REMOTE_SIZE", "OBJECT_KEY"], "REMOTE_SIZE,OBJECT_KEY"),
    ],
)
def test_a_plain_value_means_what_its_text_means(name: str, value: SettingValue, text: str) -> None:
    assert settings_from({**BASE, name: value}) == settings_from({**BASE, name: text})


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "chunk.size is of the type NoneType; it must be a str, int, bool, path, timedelta or list of words"),
        (1.5, "chunk.size is of the type float"),
        (["a,b"], "chunk.size is of the type list"),
        (b"5", "chunk.size is of the type bytes"),
        (timedelta(microseconds=1500), "chunk.size is 0:00:00.001500; give whole milliseconds"),
    ],
)
def test_a_value_that_no_file_can_hold_is_refused_by_name(value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^settings: {re.escape(sentence)}"):
        settings_from({**BASE, "chunk.size": value})  # type: ignore[dict-item]  # what an untyped caller does
    with pytest.raises(ConfigError, match="a property's name must be a str, not int"):
        settings_from({**BASE, 5: "five"})  # type: ignore[dict-item]


def test_with_and_without_prefix_mean_the_same_and_beside_it_nothing_else_is_read() -> None:
    assert settings_from(PREFIXED) == settings_from(BASE)
    assert settings_from({**PREFIXED, "broker.id": "1", "key.prefix": "not read"}).key_prefix == ""


def test_names_of_ours_that_the_prefix_hides_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        settings_from({**PREFIXED, "encryption.enabled": "true", "metrics.num.samples": "2"}, source="x.properties")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "x.properties: encryption.enabled are ignored, because they do not start with rsm.config."
    ]


def test_the_broker_may_name_another_prefix() -> None:
    declared = "remote.log.storage.manager.impl.prefix"
    own = {f"tiered.{name}": value for name, value in BASE.items()}
    assert settings_from({declared: " tiered. ", **own, "rsm.config.chunk.size": "x"}).chunk_size == 4194304
    with pytest.raises(ConfigError, match=r"impl\.prefix is 'tiered\.', but no property starts with it"):
        settings_from({declared: "tiered.", **BASE})
    with pytest.raises(ConfigError, match=r"impl\.prefix is empty"):
        settings_from({declared: "", **BASE})


def test_a_prefix_that_covers_its_own_property_works() -> None:
    prefix = "remote.log.storage.manager.impl."
    own = {prefix + name: value for name, value in BASE.items()}
    assert settings_from({**own, f"{prefix}prefix": prefix}).storage_backend == "memory"


def test_errors_name_source_property_value_and_what_is_expected() -> None:
    assert error_of(PREFIXED | {"rsm.config.chunk.size": "0"}) == (
        "settings: rsm.config.chunk.size is '0'; it must be an int: 1..1073741823"
    )
    with pytest.raises(ConfigError, match=r"^s\.properties: "):
        settings_from({}, source="s.properties")


def test_all_problems_are_told_at_once_one_a_line_in_the_order_of_the_file() -> None:
    lines = error_of({"compression.level": "99", "chunk.size": "0", "nonsense": "1"}).splitlines()
    assert [line.split(";")[0].split(",")[0] for line in lines] == [
        "settings: 4 settings are wrong:",
        "  compression.level is '99'",
        "  chunk.size is '0'",
        "  nonsense is not known",
        "  storage.backend.class is missing",
    ]


def test_of_thousands_of_problems_the_first_are_told() -> None:
    nonsense = {f"nonsense{at}": "1" for at in range(3000)}
    lines = error_of({**nonsense, "storage.backend.class": "memory"}).splitlines()
    assert (len(lines), lines[0], lines[-1]) == (22, "settings: 3000 settings are wrong:", "  … and 2980 more")


@given(inner=text)
def test_one_pair_of_quotes_is_taken_off_and_blanks_inside_stay(inner: str) -> None:
    assert settings_from({**BASE, "key.prefix": f' "{inner}"\t'}).key_prefix == inner


@given(inner=text.filter(lambda t: not t.strip().startswith('"')), blanks=st.text("\x00\t\n\x0b\x1f ", max_size=3))
def test_blanks_around_a_value_are_trimmed_as_java_trims(inner: str, blanks: str) -> None:
    java_trimmed = inner.strip("".join(map(chr, range(33))))
    assert settings_from({**BASE, "key.prefix": f"{blanks}{inner}{blanks}"}).key_prefix == java_trimmed


@pytest.mark.parametrize(("given", "prefix"), [('"', '"'), ('""', "")])
def test_a_lone_quote_is_text(given: str, prefix: str) -> None:
    assert settings_from({**BASE, "key.prefix": given}).key_prefix == prefix


def test_quotes_of_the_key_prefix_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        settings_from({**BASE, "key.prefix": '"some/prefix/"', "compression.level": '"5"'}, source="q.properties")
    assert [record.getMessage() for record in caplog.records] == [
        "q.properties: the quotes around key.prefix are ignored, but the JVM plugin would write them into every key"
    ]


def test_relative_paths_start_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "conf"
    own.mkdir()
    write(own, "storage.backend.class=filesystem\nchunk.size=1\nstorage.root=../store\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings("conf/rsm.properties").storage_root == own / "../store"
    write(own, f"storage.backend.class=filesystem\nchunk.size=1\nstorage.root={tmp_path}/abs\n")
    assert load_settings("conf/rsm.properties").storage_root == tmp_path / "abs"


def test_relative_paths_of_a_mapping_start_from_base_dir() -> None:
    files = {"storage.backend.class": "filesystem", "chunk.size": "1", "storage.root": "s"}
    ring = {
        "encryption.enabled": "true",
        "encryption.key.pair.id": "k",
        "encryption.key.pairs": "k",
        "encryption.key.pairs.k.public.key.file": "pub",
        "encryption.key.pairs.k.private.key.file": "/priv",
    }
    cache = {"fetch.chunk.cache.class": "disk", "fetch.chunk.cache.size": "1", "fetch.chunk.cache.path": "c"}
    settings = settings_from({**files, **ring, **cache}, base_dir=Path("/b"))
    assert settings.storage_root == Path("/b/s")
    assert settings.encryption is not None
    assert settings.encryption.key_pairs[0].public_key_file == Path("/b/pub")
    assert settings.encryption.key_pairs[0].private_key_file == Path("/priv")
    assert settings.fetch.chunk_cache is not None
    assert settings.fetch.chunk_cache.path == Path("/b/c")
    assert settings_from(files).storage_root == Path("s")


def test_settings_are_frozen_and_picklable() -> None:
    settings = settings_from({**BASE, "custom.metadata.fields.include": "REMOTE_SIZE"})
    with pytest.raises(ValueError, match="frozen"):
        settings.chunk_size = 1
    assert pickle.loads(pickle.dumps(settings)) == settings


@given(st.text(st.sampled_from("ab=: \\\n\r\t\f#!u0041"), max_size=40))
def test_joined_lines_are_what_the_library_reads(text: str) -> None:
    try:
        expected = javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError:
        with pytest.raises(javaproperties.InvalidUEscapeError):
            javaproperties.loads(join_lines(text))
        return
    assert {name: value for name, value in javaproperties.loads(join_lines(text)).items() if name or value} == {
        name: value for name, value in expected.items() if name or value
    }


def test_continued_lines_take_a_time_that_grows_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "long.properties"
    path.write_text("name=" + "x\\\n" * 300_000 + "end\n")
    # In quadratic time this would take hours.
    assert read_properties(path) == {"name": "x" * 300_000 + "end"}
