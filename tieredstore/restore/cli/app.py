"""``tieredstore restore``: its commands."""

from __future__ import annotations

from typing import Final

import typer

from tieredstore.restore.cli import groups, logdir, offsets, produce, snapshot, undelete, verify

app: Final = typer.Typer(no_args_is_help=True, help="Put what is in a bucket back into Kafka.")


@app.callback()
def restore() -> None:
    """Put what is in a bucket back into Kafka: the segments of a cluster's log directories, batch by batch,
    or its records in the topics of a running cluster.

    undelete brings segments back into the bucket, and verify compares a cluster with it.
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
