"""The commands that bring a bucket's segments back into Kafka."""

from __future__ import annotations

from typing import Final

from tieredstore.cli.app.table import Effect, Entry, Loaded


def _restore() -> Loaded:
    import typer

    from tieredstore.restore.cli import groups, logdir, offsets, produce, snapshot, undelete, verify

    app = typer.Typer(add_completion=False)
    for command in (
        logdir.prepare, logdir.logdir, logdir.finish, produce.produce, offsets.offsets, groups.groups,
        undelete.undelete, verify.verify, snapshot.snapshot, snapshot.schemas,
    ):  # fmt: skip
        app.command()(command)
    return app


_EFFECTS: Final[dict[str, Effect]] = {
    "prepare": "adds",
    "logdir": "adds",
    "finish": "rewrites",
    "produce": "adds",
    "offsets": "reads",
    "groups": "rewrites",
    "undelete": "rewrites",
    "verify": "reads",
    "snapshot": "adds",
    "schemas": "rewrites",
}
COMMANDS: Final = (Entry("restore", "Put the content of a bucket back into Kafka.", _EFFECTS, _restore),)
