from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import SecretStr
from pyspark import SparkFiles

from tieredstore.errors import ConfigError
from tieredstore.spark.source.store_source import StoreSource, manager_of

FILESYSTEM = ("storage.backend.class", "filesystem")


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder for shipped files in a simulated Spark worker, which has another working directory."""
    folder, working = tmp_path / "shipped", tmp_path / "working"
    folder.mkdir()
    working.mkdir()
    # PySpark's worker sets these names, and nothing public does.
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(folder))
    monkeypatch.chdir(working)
    return folder


def written(path: Path, *lines: str) -> str:
    path.write_text("\n".join(("storage.backend.class=filesystem", *lines)))
    return str(path)


def test_options_alone_are_settings_without_a_chunk_size() -> None:
    settings = StoreSource(None, (FILESYSTEM, ("storage.root", "/r"), ("key.prefix", "p/"))).load()
    assert (settings.storage_root, settings.key_prefix) == (Path("/r"), "p/")


def test_a_chunk_size_that_is_given_counts(tmp_path: Path) -> None:
    file = written(tmp_path / "s.properties", "storage.root=/r", "chunk.size=100")
    assert StoreSource(file, ()).load().chunk_size == 100
    assert StoreSource(file, (("chunk.size", "200"),)).load().chunk_size == 200
    with pytest.raises(ConfigError, match=r"chunk\.size is '0'"):
        StoreSource(file, (("chunk.size", "0"),)).load()


def test_options_extend_and_override_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "s.properties", "storage.root=/r", "key.prefix=a/")
    settings = StoreSource(file, (("key.prefix", "b/"), ("fetch.parallelism", "3"))).load()
    assert (settings.storage_root, settings.key_prefix, settings.fetch.parallelism) == (Path("/r"), "b/", 3)


@pytest.mark.parametrize("name", ["key.prefix", "rsm.config.key.prefix"])
def test_options_override_a_brokers_file_with_and_without_its_prefix(tmp_path: Path, name: str) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\nmy.storage.backend.class=filesystem\nmy.storage.root=/r\nmy.key.prefix=a/\n"
                    "remote.log.storage.manager.impl.prefix=my.\n")  # fmt: skip
    assert StoreSource(str(file), ((name, "b/"),)).load().key_prefix == "b/"


def test_a_file_is_looked_for_in_the_working_directory_and_then_among_shipped_ones(shipped: Path) -> None:
    written(shipped / "s.properties", "storage.root=/shipped")
    source = StoreSource("s.properties", ())
    assert source.load().storage_root == Path("/shipped")
    written(Path("s.properties"), "storage.root=/working")
    assert source.load().storage_root == Path("/working")


def test_paths_in_a_file_start_from_its_folder(shipped: Path) -> None:
    written(shipped / "s.properties", "storage.root=data")
    assert StoreSource("s.properties", ()).load().storage_root == shipped / "data"


def test_paths_among_options_are_looked_for_like_the_file(shipped: Path, tmp_path: Path) -> None:
    (shipped / "data").mkdir()
    source = StoreSource(None, (FILESYSTEM, ("storage.root", "data")))
    assert source.load().storage_root == shipped / "data"
    Path("data").mkdir()
    assert source.load().storage_root == tmp_path / "working" / "data"
    absolute = StoreSource(None, (FILESYSTEM, ("storage.root", "/nowhere/at/all")))
    assert absolute.load().storage_root == Path("/nowhere/at/all")


def test_key_files_among_options_are_looked_for_as_well(shipped: Path) -> None:
    for half in ("public", "private"):
        (shipped / f"{half}.pem").touch()
    pair = "encryption.key.pairs.K1"
    settings = StoreSource(
        None,
        (
            *(FILESYSTEM, ("storage.root", "/r"), ("encryption.enabled", "true"), ("encryption.key.pairs", "K1")),
            *((f"{pair}.{half}.key.file", f"{half}.pem") for half in ("public", "private")),
            ("encryption.key.pair.id", "K1"),
        ),
    ).load()
    assert settings.encryption is not None
    assert settings.encryption.key_pairs[0].private_key_file == shipped / "private.pem"


def test_a_text_that_is_no_path_is_left_alone() -> None:
    Path("data").mkdir()
    settings = StoreSource(None, (FILESYSTEM, ("storage.root", "/r"), ("key.prefix", "data"))).load()
    assert settings.key_prefix == "data"


def test_without_spark_only_the_working_directory_is_looked_in(monkeypatch: pytest.MonkeyPatch, shipped: Path) -> None:
    # Other tests may have left a session in PySpark's own names. The error must be the one that PySpark raises.
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", False)
    monkeypatch.setattr(SparkFiles, "_sc", None)
    written(shipped / "s.properties", "storage.root=/shipped")
    with pytest.raises(ConfigError, match=r"the settings file s\.properties is neither"):
        StoreSource("s.properties", ()).load()


def test_a_file_that_is_nowhere_is_named_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"settings file s.properties is neither in .* give its absolute path, or"):
        StoreSource("s.properties", ()).load()


@pytest.mark.parametrize("name", ["/", "s" * 5000])
def test_a_file_that_cannot_be_read_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is a folder|cannot be read"):
        StoreSource(name, ()).load()


def test_a_wrong_value_names_the_file_and_the_options(tmp_path: Path) -> None:
    file = written(tmp_path / "s.properties", "storage.root=/r")
    with pytest.raises(ConfigError, match=r"s.properties with options: compression.level is '99'"):
        StoreSource(file, (("compression.level", "99"),)).load()
    with pytest.raises(ConfigError, match=r"^options: storage.root is missing"):
        StoreSource(None, (FILESYSTEM,)).load()


def test_each_load_reads_the_file_again(tmp_path: Path) -> None:
    source = StoreSource(written(tmp_path / "s.properties", "storage.root=/r"), ())
    source.load()
    written(tmp_path / "s.properties", "storage.root=/s")
    assert source.load().storage_root == Path("/s")


def test_an_open_store_is_used_until_its_file_changes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    source = StoreSource(written(tmp_path / "s.properties", f"storage.root={tmp_path}/one"), ())
    manager = manager_of(source)
    assert manager_of(source) is manager
    written(tmp_path / "s.properties", f"storage.root={tmp_path}/other")
    changed = manager_of(source)
    assert changed.settings.storage_root == tmp_path / "other"
    # A stream may still hold the earlier one.
    manager.check_open()
    (tmp_path / "s.properties").unlink()
    assert manager_of(source) is changed


def test_it_travels_and_is_a_key_and_shows_no_value(tmp_path: Path) -> None:
    file = written(tmp_path / "s.properties", "storage.root=/r", "storage.aws.secret.access.key=filesecret")
    source = StoreSource(file, (("storage.aws.secret.access.key", "optionsecret"),))
    assert pickle.loads(pickle.dumps(source)) == source
    assert {source: 1}[StoreSource(file, source.properties)] == 1
    assert "optionsecret" not in repr(source)
    assert b"filesecret" not in pickle.dumps(source)


def test_a_secret_among_options_reaches_the_settings_as_a_secret() -> None:
    source = StoreSource(
        None,
        (
            *(("storage.backend.class", "s3"), ("storage.s3.bucket.name", "b"), ("storage.s3.region", "r")),
            *(("storage.aws.access.key.id", "i"), ("storage.aws.secret.access.key", "optionsecret")),
        ),
    )
    settings = source.load()
    assert settings.s3 is not None
    assert settings.s3.credentials.secret_access_key == SecretStr("optionsecret")
    assert "optionsecret" not in repr(settings)
