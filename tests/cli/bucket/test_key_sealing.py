"""``keys seal`` and passphrases, from the command line to reading back a segment."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.cli.cli_process import ORIGINALS, tieredstore, write_settings
from tests.support.cli.safe_key_service import install_safe


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return install_safe(monkeypatch, tmp_path)


@pytest.mark.slow
def test_a_sealed_pair_reads_what_was_written_before_and_the_plain_one_may_go(tmp_path: Path, service: str) -> None:
    printed = tieredstore("keys", "new", "k", "-d", tmp_path, "--bits", 2048).text
    settings = write_settings(tmp_path)
    plain = settings.read_text() + printed
    settings.write_text(plain)
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    log = tieredstore("fetch", "-c", settings, "single", 0, 0).stdout

    done = tieredstore("keys", "seal", "k", "-c", settings, "--kms", service, "--kms-key", "kafka").clean()
    sealed = tmp_path / "k.private.sealed"
    assert stat.S_IMODE(sealed.stat().st_mode) == 0o600
    (tmp_path / "k.private.pem").unlink()
    kept = [line for line in plain.splitlines() if ".private.key.file" not in line]
    settings.write_text("\n".join(kept) + "\n" + done.text)
    assert tieredstore("fetch", "-c", settings, "single", 0, 0).stdout == log

    # Another key of the service, or another service, does not open the sealed key.
    settings.write_text("\n".join(kept) + "\n" + done.text.replace("kms.key=kafka", "kms.key=other"))
    tieredstore("fetch", "-c", settings, "single", 0, 0).fails(
        2, f"{sealed} cannot be opened by safe: another key has sealed it"
    )


def test_nothing_is_written_over_and_nothing_of_a_pair_that_is_not_listed(tmp_path: Path, service: str) -> None:
    printed = tieredstore("keys", "new", "k", "-d", tmp_path, "--bits", 2048).text
    settings = write_settings(tmp_path)
    settings.write_text(settings.read_text() + printed)
    arguments = ("-c", settings, "--kms", service, "--kms-key", "kafka")
    other = tieredstore("keys", "seal", "j", *arguments)
    assert (other.code, "the settings list no key pair 'j': k" in other.stderr) == (2, True)
    (tmp_path / "k.private.sealed").write_text("precious")
    there = tieredstore("keys", "seal", "k", *arguments)
    assert (there.code, "never overwritten" in there.stderr) == (2, True)
    assert (tmp_path / "k.private.sealed").read_text() == "precious"
    unknown = tieredstore(
        "keys", "seal", "k", "-c", settings, "--kms", "moon", "--kms-key", "x", "--sealed", tmp_path / "new"
    )
    assert (unknown.code, "neither one of aws, gcp, azure, vault" in unknown.stderr) == (2, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_pair_with_a_passphrase_encrypts_and_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = write_settings(tmp_path)
    (tmp_path / "words").write_text("correct horse\n")
    done = tieredstore("keys", "new", "k", "-c", settings, "--bits", 2048, "--passphrase-file", tmp_path / "words")
    assert done.code == 0
    assert "passphrase.file" in settings.read_text()
    assert tieredstore("upload", "-c", settings, ORIGINALS).code == 0
    assert tieredstore("fetch", "-c", settings, "single", 0, 0).code == 0
    (tmp_path / "words").write_text("battery staple\n")
    wrong = tieredstore("fetch", "-c", settings, "single", 0, 0)
    assert (wrong.code, "is not opened by its passphrase" in wrong.stderr) == (2, True)
    assert "battery" not in wrong.stderr

    monkeypatch.setenv("WORDS", "correct horse")
    printed = tieredstore("keys", "new", "j", "-d", tmp_path, "--bits", 2048, "--passphrase-env", "WORDS")
    assert "encryption.key.pairs.j.private.key.passphrase.env=WORDS\n" in printed.text
    assert "correct horse" not in printed.text


def test_a_passphrase_that_is_not_there_makes_no_pair(tmp_path: Path) -> None:
    assert "TIEREDSTORE_NO_SUCH" not in os.environ
    done = tieredstore("keys", "new", "k", "-d", tmp_path, "--passphrase-env", "TIEREDSTORE_NO_SUCH")
    assert (done.code, "TIEREDSTORE_NO_SUCH, which holds the passphrase, is not set" in done.stderr) == (2, True)
    both = tieredstore("keys", "new", "k", "-d", tmp_path, "--passphrase-env", "A", "--passphrase-file", tmp_path / "b")
    assert (both.code, "give one of the two" in both.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []
