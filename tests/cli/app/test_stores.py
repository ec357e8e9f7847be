"""``--store URL``: every command with settings takes it, and one round trip of each store on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import typer.main

from tests.support.cli.cli_process import ORIGINALS, TXN, Result, spawn, tieredstore, write_settings
from tests.support.servers.azurite_server import AzureServer
from tests.support.servers.fake_gcs import GcsServer
from tests.support.servers.s3_server import REGION, S3Server
from tests.support.stores.clouds import make_container
from tieredstore.cli.app.main import app

COMMANDS = {
    name: {option for parameter in command.params for option in parameter.opts}
    for name, command in typer.main.get_group(app).commands.items()
}


def test_a_command_that_takes_settings_takes_a_store() -> None:
    assert {"upload", "ls", "inspect", "fetch", "rm"} <= set(COMMANDS)
    # A service is configured only by its file, which it reloads while it runs.
    taking = {name for name, options in COMMANDS.items() if "--settings" in options} - {"uploader", "pubsub broker"}
    assert {name for name, options in COMMANDS.items() if "--store" in options} == taking


def test_a_folder_needs_no_settings(tmp_path: Path) -> None:
    (tmp_path / "a store").mkdir()
    url = (tmp_path / "a store").as_uri()
    assert tieredstore("upload", "--store", url, ORIGINALS).code == 0
    rows = tieredstore("ls", "--store", url, "-p", "all", "--json").rows[0]
    assert len(rows) == 3
    row = rows[0]
    log = ORIGINALS / f"{row['topic']}-{row['partition']}" / f"{row['base_offset']:020}.log"
    fetched = tieredstore("fetch", "--store", url, row["topic"], row["partition"], row["base_offset"])
    assert (fetched.code, fetched.stdout) == (0, log.read_bytes())


def test_a_store_goes_over_the_settings(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, {"compression.enabled": "true"})
    (tmp_path / "other").mkdir()
    url = (tmp_path / "other").as_uri()
    assert tieredstore("upload", "-c", settings, "--store", url, TXN).code == 0
    assert tieredstore("ls", "-c", settings, "-p", "all", "--json").rows[0] == []
    rows = tieredstore("ls", "-c", settings, "--store", url, "-p", "all", "--json").rows[0]
    assert rows
    assert all(row["compressed"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://x", "in memory"),
        ("nonsense", "there is no file or folder 'nonsense'; URLs begin with"),
        ("s3://key:password@bucket", "without credentials"),
        ("file:///no/such/folder/at/all", "not an existing folder"),
        ("/no/such/folder/at/all", "folder/at/all' is not an existing folder"),
        (None, "tieredstore: no store is named: give --settings FILE (-c) or --store URL\n"),
    ],
)
def test_a_wrong_store_is_one_sentence_and_exits_2(url: str | None, said: str) -> None:
    done = spawn("ls", *([] if url is None else ["--store", url]))
    done.fails(2, "tieredstore: ", said)
    assert done.stderr.count("\n") == 1
    assert "password" not in done.stderr


# One round trip of each store. The first write and the first read are in separate processes, the rest in this one.


def round_trip(store: tuple[object, ...], environment: Mapping[str, str]) -> None:
    """Upload, upload again without effect, list, fetch, delete. ``store`` are the options that name the store."""

    def clean(done: Result) -> Result:
        assert (done.code, done.stderr) == (0, "")
        return done

    assert "3 copied" in clean(spawn("upload", *store, ORIGINALS, **environment)).text
    with pytest.MonkeyPatch.context() as patch:
        for name, text in environment.items():
            patch.setenv(name, text)
        assert "3 skipped" in clean(tieredstore("upload", *store, ORIGINALS)).text
        rows = clean(tieredstore("ls", *store, "-p", "all", "--json")).rows[0]
        assert len(rows) == 3
        where = (rows[0]["topic"], rows[0]["partition"], rows[0]["base_offset"])
        log = (ORIGINALS / f"{where[0]}-{where[1]}" / f"{where[2]:020}.log").read_bytes()
        assert clean(spawn("fetch", *store, *where, **environment)).stdout == log
        clean(tieredstore("rm", *store, where[0], "-p", where[1], "--segment", where[2], "--yes"))
        assert len(clean(tieredstore("ls", *store, "-p", "all", "--json")).rows[0]) == 2
        gone = tieredstore("fetch", *store, *where)
        assert (gone.code, gone.stdout) == (3, b"")


def sdk_environment(server: S3Server, secret_key: str) -> dict[str, str]:
    known = {"ENDPOINT_URL": server.endpoint_url, "REGION": REGION, "ACCESS_KEY_ID": server.access_key}
    return {f"AWS_{name}": text for name, text in {**known, "SECRET_ACCESS_KEY": secret_key}.items()}


def test_s3_by_a_url_and_the_environment_of_the_sdk(minio: S3Server) -> None:
    bucket = minio.make_bucket()
    round_trip(("--store", f"s3://{bucket}/a prefix/of ours"), sdk_environment(minio, minio.secret_key))
    keys = [listed.get("Key", "") for listed in minio.plain.list_objects_v2(Bucket=bucket).get("Contents", [])]
    assert len(keys) == 6
    assert all(key.startswith("a prefix/of ours/") for key in keys)
    refused = spawn("ls", "--store", f"s3://{bucket}", **sdk_environment(minio, "another-secret"))
    refused.fails(6)
    assert refused.stderr.count("\n") == 1
    assert "another-secret" not in refused.stderr


def test_s3_by_settings_for_a_compatible_server(seaweedfs: S3Server, tmp_path: Path) -> None:
    settings = tmp_path / "store.properties"
    lines = {
        "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
        "storage.s3.bucket.name": "the-url-names-another",
        "storage.s3.region": REGION,
        "storage.s3.endpoint.url": seaweedfs.endpoint_url,
        "storage.s3.compatibility": "s3-compatible",
        "storage.s3.listing.order": "by-folder",
        "storage.aws.access.key.id": seaweedfs.access_key,
        "storage.aws.secret.access.key": seaweedfs.secret_key,
        "chunk.size": "65536",
    }
    settings.write_text("".join(f"rsm.config.{name}={text}\n" for name, text in lines.items()))
    round_trip(("-c", settings, "--store", f"s3://{seaweedfs.make_bucket()}"), {})


def test_gcs_by_a_url_and_the_environment_of_the_sdk(fake_gcs: GcsServer) -> None:
    bucket = fake_gcs.make_bucket()
    round_trip(("--store", f"gs://{bucket}/kafka"), {"STORAGE_EMULATOR_HOST": fake_gcs.endpoint_url})


def test_azure_by_a_url_and_the_environment_of_the_sdk(azurite: AzureServer) -> None:
    name = make_container(azurite)
    round_trip(("--store", f"az://{name}/kafka"), {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string})


@pytest.mark.parametrize("written", ["{folder}", "./a folder#1", "../{folder.parent.name}/a folder#1"])
def test_a_path_is_a_folder(written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a folder#1"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    store = written.format(folder=folder)
    assert tieredstore("upload", "--store", store, ORIGINALS).code == 0
    assert (
        tieredstore("ls", "--store", store, "--json").stdout
        == tieredstore("ls", "--store", folder.as_uri().replace("#", "%23"), "--json").stdout
    )
    assert any(folder.iterdir())
