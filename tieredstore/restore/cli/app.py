"""The group of commands ``tieredstore restore``."""

from __future__ import annotations

from typing import Final

import typer

from tieredstore.restore.cli import groups, logdir, offsets, produce, snapshot, undelete, verify

app: Final = typer.Typer(add_completion=False)

for _command in (
    logdir.prepare,
    logdir.logdir,
    logdir.finish,
    produce.produce,
    offsets.offsets,
    groups.groups,
    undelete.undelete,
    verify.verify,
    snapshot.snapshot,
    snapshot.schemas,
):
    app.command()(_command)
