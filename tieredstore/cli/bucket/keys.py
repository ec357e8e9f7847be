"""``tieredstore keys``: make, count, rotate and retire the key pairs that wrap segments' data keys."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import javaproperties
import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.api.rows import KeyUse, Segment
from tieredstore.cli.app.options import Apply, Json, Output, SettingsFile, Store, Topics, Work
from tieredstore.cli.app.outcomes import Words, carry_out, say_what_stays
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    human_count,
    iso_utc,
    print_json_line,
    print_lines,
    quantity,
)
from tieredstore.cli.terminal.progress import counting
from tieredstore.cli.terminal.rows import Row, column, field, time_fields
from tieredstore.cli.terminal.tables import moment, number, text, word
from tieredstore.config import load_settings
from tieredstore.config.encryption import PAIRS
from tieredstore.errors import (
    ConfigError,
    PreconditionFailedError,
    ResourceNotFoundError,
    StoreUnavailableError,
    UnknownKeyError,
)
from tieredstore.model import human_bytes
from tieredstore.ops.keys.pairs import KeyPairFiles, KmsKey, generate_key_pair, passphrase_from, seal_pair
from tieredstore.ops.keys.settings import add_key_pair, folder_of_pairs, list_pairs
from tieredstore.ops.keys.use import KeyNeed, NeedReason, cached_until_ms

if TYPE_CHECKING:
    from tieredstore.api.bucket import Bucket
    from tieredstore.config.encryption import EncryptionSettings

_LEFT: Final = {
    "active": "already encrypted with this key pair",
    "plain": "not encrypted",
    "unknown_key": "with a key pair that is not on the ring",
    "wrong_key": "that the key pair with their key id cannot decrypt",
    "damaged": "in a damaged manifest or snapshot",
    "refused": "that the store refuses to read or replace",
    "changed": "being changed by another process: run it again",
    "gone": "already deleted",
}
_EXIT_CODES: Final = dict.fromkeys(("unknown_key", "wrong_key", "damaged", "refused"), UnknownKeyError.exit_code) | {
    "changed": StoreUnavailableError.exit_code
}
_NEEDS: Final = {
    NeedReason.WRAPPED: "segments are encrypted by it",
    NeedReason.DAMAGED: "manifests are damaged or archived",
    NeedReason.UNCOMMITTED: "segments have no manifest",
    NeedReason.SNAPSHOT: "snapshots of the cluster are encrypted by it, or damaged",
    NeedReason.UNFINISHED: "writes are unfinished",
    NeedReason.CACHED: "rotation to another pair, after which readers may still cache old manifests",
}
_ASK: Final = "tieredstore keys list ID"

app: Final = typer.Typer(add_completion=False)


@app.command()
def new(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the pair; manifests record it permanently.")],
    settings_file: SettingsFile,
    directory: Annotated[
        Path | None,
        typer.Option(
            "-d",
            "--directory",
            metavar="DIR",
            help="Folder for the two files.",
            show_default="beside FILE's other pairs, or beside FILE; without -c the working directory",
        ),
    ] = None,
    bits: Annotated[
        int, typer.Option("--bits", metavar="BITS", min=2048, max=16384, help="Size of the RSA modulus.")
    ] = 3072,
    passphrase_env: Annotated[
        str | None,
        typer.Option(
            "--passphrase-env", metavar="NAME", help="Protect the private key by the passphrase in this variable."
        ),
    ] = None,
    passphrase_file: Annotated[
        Path | None,
        typer.Option(
            "--passphrase-file", metavar="FILE", help="Protect the private key by the passphrase in FILE's first line."
        ),
    ] = None,
    activate: Annotated[
        bool, typer.Option("--activate", help="With -c: encrypt new segments by this pair from now on.")
    ] = False,
) -> None:
    """Make an RSA key pair and add it to the settings file; without -c, print the settings that use it.

    The command writes ID.private.pem (PKCS#8, readable only by its owner) and ID.public.pem (X.509), and never
    overwrites a file. The new pair becomes active only with --activate, or if the file has no active pair. First add
    the new pair to the settings of every reader and writer, then make it active. All other lines of the file stay
    unchanged. If the command is killed, run it again to complete the pair. If you lose the private key, you lose the
    data.

    Example: tieredstore keys new key2 -c store.properties
    """
    settings = settings_file.settings
    if settings is None:
        if activate:
            raise ConfigError("--activate changes a settings file: give --settings FILE (-c)")
        passphrase = passphrase_from(passphrase_env, passphrase_file)
        sys.stdout.write(settings_lines(generate_key_pair(key_id, directory or Path(), bits, passphrase=passphrase)))
        return
    if key_id in list_pairs(settings):
        raise ConfigError(f"{settings} lists the key pair {key_id!r} already; choose another id")
    passphrase = passphrase_from(passphrase_env, passphrase_file)
    folder = folder_of_pairs(settings) if directory is None else directory
    files = generate_key_pair(key_id, folder, bits, passphrase=passphrase, resumes=True)
    add_key_pair(settings, files, activate=activate)
    print_lines([f"{files.private}", f"{files.public}", f"{settings} lists {', '.join(list_pairs(settings))}"])


@app.command("list")
def list_keys(
    key_id: Annotated[str | None, typer.Argument(metavar="ID", help="Show if this key pair can be retired.")] = None,
    *,
    store: Store,
    output: Output,
) -> None:
    """List the key pairs that encrypt segments; with an ID, list everything that needs or may need this pair.

    The command reads every manifest, and needs no key. FIRST and LAST are the end times (UTC) of the oldest and the
    newest segment. RING shows whether the settings list the pair.

    Before you retire a pair, make another pair active in every writer and in these settings, then run keys list with
    the old ID. The exit code is 5 while anything needs the old pair. It is 0, without a row, once the pair can be
    retired. It is 3 if there are no segments at all, for example under a wrong prefix. Objects without a manifest and
    unfinished uploads count too, because they may still be committed with the pair.

    Example: tieredstore keys list key1 -c store.properties
    """
    with store.open(is_all=True) as bucket:
        bucket.opened().refuse_raw("keys list", "objects in this layout are not encrypted")
        if key_id is not None:
            _check(bucket, key_id, as_json=output.as_json)
            return
        unreadable = 0
        with counting("reading", "manifest") as advance:

            def count(segment: Segment) -> None:
                nonlocal unreadable
                unreadable += segment.damage is not None
                advance()

            rows = bucket.keys(on_segment=count)
        row = _key_row(bucket.settings.encryption)
        sums = {name: sum(getattr(each, name) for each in rows) for name in ("segments", "size", "stored_size")}
        row.show(rows, as_json=output.as_json, empty="no segments found", summary=sums, wide=output.wide)
        if unreadable:
            complain(
                f"{quantity(unreadable, 'segment')} with a damaged or archived manifest: the key pair is unknown (run "
                "verify)"
            )


@app.command()
def rotate(topics: Topics, store: Store, work: Work, apply: Apply, output: Json) -> None:
    """Wrap the data keys of segments and snapshots again, under the active key pair (encryption.key.pair.id).

    Without --yes, only show the plan. Data and indexes stay unchanged; only the wrapped data key in each manifest
    changes. With topics, only their segments are rotated. Before a rotation, every writer and reader must have the new
    pair in its settings. If a rotation is stopped or killed, run it again. A segment is reported and skipped if its key
    pair is not in the settings, or cannot decrypt the segment's data key. The exit code is then 4.

    Example: tieredstore keys rotate -c store.properties --yes
    """
    old_keys: set[str] = set()

    def show(outcome: Outcome, _verb: str) -> None:
        if outcome.status == "done" and outcome.key_id is not None:
            old_keys.add(outcome.key_id)
        if outcome.reason is not None:
            complain(f"left alone: {outcome.reason}")

    with store.open(is_all=not topics.names) as bucket:
        plan = bucket.rotate_keys(*topics.names, **topics.which(work))
        encryption = bucket.settings.encryption
        words = Words(
            noun="data key",
            done=f"rotated to key pair {encryption and encryption.key_pair_id!r}",
            doing="rotating",
            show=show,
            left=_LEFT,
            exit_codes=_EXIT_CODES,
            has_sizes=False,
            none="nothing to rotate",
        )
        try:
            carry_out(plan, words, yes=apply.yes, as_json=output.as_json)
        finally:
            if old_keys:
                print_lines([_until(bucket, sorted(old_keys))])


@app.command()
def seal(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key pair, which the settings must list.")],
    service: Annotated[
        str,
        typer.Option("--kms", metavar="NAME", help="The key service: aws, gcp, azure, vault, or an installed service."),
    ],
    service_key: Annotated[
        str,
        typer.Option(
            "--kms-key",
            metavar="KEY",
            help="The service's key: an ARN, a resource name, a key's URL, or Vault's MOUNT/KEY.",
        ),
    ],
    settings_file: SettingsFile,
    endpoint_url: Annotated[
        str | None,
        typer.Option("--kms-endpoint-url", metavar="URL", help="URL of the service, if its default does not apply."),
    ] = None,
    sealed: Annotated[
        Path | None,
        typer.Option(
            "--sealed", metavar="FILE", help="The file to write.", show_default="ID.private.sealed beside SETTINGS"
        ),
    ] = None,
) -> None:
    """Seal a pair's private key by a key management service, and print the settings that open it.

    Before it writes the sealed key, the command opens the sealed key again and compares it with the private key in the
    settings. Once all readers and writers have the new settings, delete the unsealed private key; keep a copy offline.

    Example: tieredstore keys seal key1 -c store.properties --kms aws --kms-key alias/kafka
    """
    settings = settings_file.path("the key pair")
    path = settings.absolute().parent / f"{key_id}.private.sealed" if sealed is None else sealed
    pair = seal_pair(load_settings(settings), key_id, KmsKey(service, service_key, endpoint_url), path)
    sys.stdout.write(_as_properties(pair))


def settings_lines(files: KeyPairFiles) -> str:
    """Return the settings that encrypt with this key pair alone, as lines of a settings file."""
    alone = {"encryption.enabled": "true", "encryption.key.pair.id": files.key_id, PAIRS: files.key_id}
    return _as_properties(alone | files.settings())


def _as_properties(lines: Mapping[str, str]) -> str:
    return "".join(f"{javaproperties.join_key_value(name, value)}\n" for name, value in lines.items())


def _check(bucket: Bucket, key_id: str, *, as_json: bool) -> None:
    """Print everything that needs a pair. Raise typer.Exit with code 5 if anything needs it, and ResourceNotFoundError
    if there are no segments.
    """
    reasons: Counter[NeedReason] = Counter()
    encryption, listed = bucket.settings.encryption, 0

    def tell(need: KeyNeed) -> None:
        reasons[need.reason] += 1
        if as_json:
            print_json_line(_NEED.json(need))
        else:
            detail = f"  {need.detail}" if need.reason is NeedReason.CACHED else ""
            print_lines([f"{need.reason.value:12} {need.name}{detail}"])

    with counting("reading", "manifest") as advance:

        def count(_: object) -> None:
            nonlocal listed
            listed += 1
            advance()

        bucket.keys(key_id, on_segment=count, on_need=tell)
    is_active = encryption is not None and encryption.key_pair_id == key_id
    if as_json:
        counts = {reason.value: reasons[reason] for reason in NeedReason}
        needed = is_active or bool(reasons) or (None if not listed else False)
        sums: dict[str, JsonValue] = {"segments": listed, "key_id": key_id, "active": is_active, "needed": needed}
        print_json_line({"summary": {**counts, **sums}})
    if key_id not in _ring_ids(encryption):
        complain(f"the settings list no key pair {key_id!r}: check the spelling")
    if reasons:
        is_cached_alone = reasons.keys() == {NeedReason.CACHED}
        way_out = (
            ": run this again when the readers' caches have expired" if is_cached_alone else "; run keys rotate first"
        )
        needs = ", ".join(f"{count} {_NEEDS[reason]}" for reason, count in sorted(reasons.items()))
        complain(f"key pair {key_id!r} is needed, or may still be needed: {needs}{way_out}")
    if is_active:
        complain(f"key pair {key_id!r} is active in these settings: new copies are encrypted with it")
    if reasons or is_active:
        raise typer.Exit(PreconditionFailedError.exit_code)
    if not listed:
        raise ResourceNotFoundError(
            f"no segments found, so the use of key pair {key_id!r} is unknown: check the bucket and key.prefix"
        )
    complain(f"nothing needs key pair {key_id!r} any more: {quantity(listed, 'segment')} checked")
    _tell_of_versions(bucket)


def _tell_of_versions(bucket: Bucket) -> None:
    """Say that older versions of manifests may need a retired pair, if the bucket keeps deleted objects."""
    if say_what_stays(bucket.opened().store):
        complain(
            "older versions of manifests were not checked: keep the pair while you may bring back deleted segments"
        )


def _until(bucket: Bucket, old_keys: Sequence[str]) -> str:
    """Return a phrase that tells how long readers need the old key pairs. The command ``keys list ID`` applies the same
    rule."""
    opened, cached_ms = bucket.opened(), bucket.settings.fetch.manifest_cache.retention_ms
    names = ", ".join(map(repr, old_keys))
    if cached_ms < 0:
        forever = "readers cache manifests forever (fetch.manifest.cache.retention.ms)"
        return f"{forever}: restart them before you remove {names}"
    until = [cached_until_ms(opened.store, opened.prefix, key_id, cached_ms) for key_id in old_keys]
    known = [int(until_ms) for until_ms in until if until_ms is not None and until_ms != math.inf]
    if not known:
        return f"readers need {names} until the old manifests expire in their caches; then run: {_ASK}"
    return (
        f"readers need {names} until {iso_utc(max(known))}, when the old manifests expire in their caches "
        f"(fetch.manifest.cache.retention.ms; brokers cache them too); then run: {_ASK}"
    )


_NEED: Final[Row[KeyNeed]] = Row(
    field("name", lambda need: need.name),
    field("reason", lambda need: need.reason),
    field("detail", lambda need: need.detail or None),
)


def _key_row(encryption: EncryptionSettings | None) -> Row[KeyUse]:
    """Declare the row of a key pair: its id (None for unencrypted segments), and the sums over its segments."""
    on_ring, active = _ring_ids(encryption), None if encryption is None else encryption.key_pair_id

    def ring(key_id: str | None) -> str:
        if key_id is None:
            return ""
        return ("active" if key_id == active else "yes") if key_id in on_ring else "no"

    return Row(
        field("key_id", lambda row: row.key_id),
        column(text("KEY PAIR"), lambda row: "(not encrypted)" if row.key_id is None else row.key_id),
        field("segments", lambda row: row.segments, number("SEGMENTS", rank=1), human_count),
        field("size", lambda row: row.size, number("SIZE", rank=3), human_bytes),
        field("stored_size", lambda row: row.stored_size, number("STORED", rank=2), human_bytes),
        time_fields("oldest_timestamp", lambda row: row.oldest_time, moment("FIRST ENDS")),
        time_fields("newest_timestamp", lambda row: row.newest_time, moment("LAST")),
        field("on_the_ring", lambda row: row.key_id in on_ring),
        field("active", lambda row: row.key_id is not None and row.key_id == active),
        column(word("RING"), lambda row: ring(row.key_id)),
    )


def _ring_ids(encryption: EncryptionSettings | None) -> tuple[str, ...]:
    return () if encryption is None else tuple(pair.id for pair in encryption.key_pairs)
