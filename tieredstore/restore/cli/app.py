"""The group of commands ``tieredstore restore``."""

from __future__ import annotations

from typing import Final

import typer

from tieredstore.restore.cli import groups, logdir, offsets, produce, snapshot, undelete, verify

app: Final = typer.Typer(no_args_is_help=True, help="Put the content of a bucket back into Kafka.")


@app.callback()
def restore() -> None:
    """Put the content of a bucket back into Kafka: segments into the log directories of stopped brokers, or records
    into topics of a running cluster.

    undelete brings deleted segments back in the bucket; verify compares a cluster with the bucket.
    """


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
