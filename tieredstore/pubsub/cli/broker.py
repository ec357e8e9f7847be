"""``tieredstore pubsub broker``: a process that takes Messages of others."""

from __future__ import annotations

from pathlib import Path

import typer

from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.terminal.log_lines import log_lines
from tieredstore.errors import ConfigError
from tieredstore.pubsub.broker.running import broker_service, make_governed_broker
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.settings import BatchBrokerSettings


def run_broker(settings: Path | None, *, serve_reads: bool, json_logs: bool) -> None:
    """The command: typer.Exit with the service's code."""
    if settings is None:
        raise ConfigError("no settings are named: give --settings FILE (-c), with pubsub.broker.* beside the store's")
    log_lines(as_json=json_logs)
    with open_chosen_bucket(settings) as bucket:
        chosen = bucket.settings
        if serve_reads:
            own = chosen.section(BatchBrokerSettings).model_copy(update={"serve_reads": True})
            chosen = chosen.with_section(own)
        code = broker_service(*make_governed_broker(Topics(bucket.store, chosen))).run()
    raise typer.Exit(code)
