"""The files of examples/uploader: each option and setting exists, and limits match the defaults."""

from __future__ import annotations

import importlib
from typing import Any

from tests.support.cli.cli_process import tieredstore
from tests.support.paths import REPOSITORY
from tieredstore.uploader.settings import uploader_settings_from

EXAMPLES = REPOSITORY / "examples" / "uploader"
YAML: Any = importlib.import_module("yaml")
"""PyYAML has no type annotations."""


def test_each_alert_says_what_is_the_matter() -> None:
    (group,) = YAML.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]


def test_the_unit_starts_what_there_is_and_leaves_it_time_and_files() -> None:
    lines = (EXAMPLES / "tieredstore-uploader.service").read_text().splitlines()
    unit = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    settings = uploader_settings_from({"uploader.leadership": "static"})
    assert int(unit["TimeoutStopSec"]) > settings.drain_ms / 1000
    # The service opens all held files, and needs up to 1,024 other descriptors.
    assert int(unit["LimitNOFILE"]) >= settings.hold_max_files + 1024
    assert (unit["Restart"], unit["ExecReload"].rpartition("/")[2]) == ("always", "kill -HUP $MAINPID")
    # Held segments are hard links, which need a writable folder; everything else is read-only.
    assert (unit["ProtectSystem"], unit["ReadWritePaths"]) == ("strict", "/var/lib/kafka")
    program, *words = unit["ExecStart"].split()
    assert program.endswith("/tieredstore")
    started(words)


def started(words: list[str]) -> None:
    """Check that the command line is valid: its only error is that the file is missing."""
    done = tieredstore(*words)
    assert (done.code, words[words.index("-c") + 1] in done.stderr) == (2, True), done.stderr
