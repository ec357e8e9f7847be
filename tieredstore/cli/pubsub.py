"""``tieredstore pubsub``: batches on object storage in the manner of MemQ.

What the commands do lies in modules of their own, which are imported when one of them is asked for.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tieredstore.cli.arguments import Json, SettingsPath, StoreUrl, Wide

app: Final = typer.Typer(no_args_is_help=True, help="Batches of records in a store, in the manner of MemQ.")


@app.callback()
def pubsub() -> None:
    """Batches of records in a store, in the manner of MemQ."""


@app.command()
def inspect(
    batch: Annotated[str, typer.Argument(metavar="FILE|KEY", help="A file on this machine, or a key of the store.")],
    settings: SettingsPath = None,
    store: StoreUrl = None,
    records: Annotated[bool, typer.Option("--records", help="The records, not the Messages.")] = False,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show what a batch of MemQ's says: its Messages, or its records.

    The CRC of each Message is checked; of damaged ones it says what is wrong, and the exit code is 4. With --records
    every record is checked, and those before a damaged one are shown. --records --json is a line a record.

    Example: tieredstore pubsub inspect 28/prod/topics/orders/42_7_1700000000000_0_host-1 --store s3://logs
    """
    from tieredstore.cli.pubsub_inspect import show_batch  # noqa: PLC0415  loads the codec

    show_batch(batch, settings, store, records=records, as_json=as_json, wide=wide)
