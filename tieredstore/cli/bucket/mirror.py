"""``tieredstore mirror``: copy segments from one store to another, without a broker."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.cli.app.options import Apply, DryRun, Json, Store, Topics, Work, naming_other_prefix
from tieredstore.cli.app.outcomes import Teller, Words, carry_out, tell_all
from tieredstore.errors import ConfigError, excerpt
from tieredstore.model import human_bytes

if TYPE_CHECKING:
    from tieredstore.config import Settings

_RATE: Final = re.compile(r"(\d{1,9})(?:([kKMG])(?:iB)?)?(?:/s)?", re.ASCII)
_UNITS: Final = {None: 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def mirror(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The target's settings file; or its URL or folder, to take all other settings from the source.",
        ),
    ],
    topics: Topics,
    store: Store,
    decrypt: Annotated[
        bool, typer.Option("--decrypt", help="Allow plain copies of encrypted segments in an unencrypted target.")
    ] = False,
    new_data_keys: Annotated[
        bool,
        typer.Option(
            "--new-data-keys", help="Encrypt again, with new data keys and ids, in case the old keys were stolen."
        ),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Replace the target's damaged objects by the source's; needs --yes."),
    ] = False,
    no_read_back: Annotated[
        bool, typer.Option("--no-read-back", help="Do not read copies back to check them.")
    ] = False,
    rate: Annotated[
        str | None, typer.Option("--rate-limit", metavar="BYTES", help="Limit bandwidth, each way: 50MiB.")
    ] = None,
    *,
    work: Work,
    dry_run: DryRun = False,
    apply: Apply,
    output: Json,
) -> None:
    """Copy segments to another store or under another prefix; the source is only read.

    If both settings agree, the same bytes are stored under the same ids. If the target has another chunk size or
    compression, or adds encryption, segments are rewritten under new ids. If the target only has other key pairs, data
    keys are wrapped again. Every object is read back and compared. A segment's manifest is written last. If mirror is
    stopped or killed, run it again: segments with a manifest in the target are not sent again.

    --repair replaces the target's damaged segments by the source's copies. It verifies every byte in the target. If a
    segment is damaged, --repair verifies the source's copy, then replaces the objects that differ. It writes the
    manifest last. Without --yes, it only shows which objects it would replace.

    Example: tieredstore mirror -c store.properties s3://backup/kafka/ --dry-run
    """
    from tieredstore.api.bucket import Bucket
    from tieredstore.remote.stores import target_settings

    if repair and (decrypt or new_data_keys or no_read_back):
        raise ConfigError("--repair changes no encryption and always reads copies back: leave out the other options")
    if apply.yes and not repair:
        raise ConfigError("--yes belongs to --repair; without it, mirror copies at once")
    settings, named = store.resolve()
    source, into = (_limit_rate(one, rate) for one in (settings, target_settings(target, named)))
    with Bucket(source) as bucket, naming_other_prefix(bucket, is_all=not topics.names):
        if repair:
            plan = bucket.repair(into, *topics.names, **topics.which(work))
            carry_out(plan, _REPAIR, yes=apply.yes and not dry_run, as_json=output.as_json)
            return
        copy = partial(
            bucket.mirror, into, *topics.names, decrypt=decrypt, new_data_keys=new_data_keys,
            read_back=not no_read_back, dry_run=dry_run, **topics.which(work),
        )  # fmt: skip
        tell_all(lambda tell: copy(on_outcome=tell), Teller(_WORDS, output.as_json, dry_run=dry_run))


def _limit_rate(settings: Settings, rate: str | None) -> Settings:
    if rate is None:
        return settings
    match = _RATE.fullmatch(rate.strip())
    if match is None or not int(match[1]):
        raise ConfigError(f"--rate-limit is {excerpt(rate)!r}: give bytes per second, such as 500K, 50MiB or 1G")
    limit = int(match[1]) * _UNITS[match[2]]
    fetch = settings.fetch.model_copy(update={"rate_limit": limit})
    return settings.model_copy(update={"upload_rate_limit": limit, "fetch": fetch})


def _line(outcome: Outcome, verb: str) -> str | None:
    """Return a line for a change or a warning. Segments that were already there get no line, but are counted."""
    if outcome.error is not None:
        return f"failed  {outcome.name}: {outcome.error}"
    if outcome.kind is not None and outcome.code == "copied":
        return f"{verb}  {outcome.kind}  {outcome.name}  ({human_bytes(outcome.stored_size or 0)})"
    return None if outcome.code == "there" else f"{verb}  {outcome.name}"


_WORDS: Final = Words(
    noun="segment",
    done="copied",
    doing="copying",
    show=_line,
    left={
        "there": "already there (manifests and sizes compared, not bytes)",
        "leftover": "without a manifest in the source, and so not copied",
        "gone": "already deleted from the source",
        "failed": "failed",
    },
    none="nothing to copy",
    only_adds=True,
)


def _repair_line(outcome: Outcome, verb: str) -> str | None:
    if outcome.code == "repaired":
        return f"{verb}  {outcome.name}: {outcome.reason}  ({human_bytes(outcome.stored_size or 0)})"
    return None if outcome.code == "there" else f"{verb}  {outcome.name}: {outcome.error or outcome.reason}"


_REPAIR: Final = Words(
    noun="segment",
    done="repaired",
    doing="repairing",
    show=_repair_line,
    left={
        "there": "sound (every byte was verified)",
        "leftover": "without a manifest in the target: mirror completes them without --repair",
        "gone": "already deleted from the target",
        "changed": "being changed by another process",
        "failed": "failed",
    },
    none="the target has no segments: nothing to repair",
)
