"""``tieredstore keys``: key pairs that encrypt the segments' data keys: made, counted, rotated, retired."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import javaproperties
import typer

from tieredstore.catalog.listing import Scope
from tieredstore.cli.app.arguments import (
    DryRun,
    Json,
    OnlyPartition,
    OnlyTopic,
    Parallel,
    SettingsPath,
    StoreUrl,
    TopicId,
    Wide,
    choose_scope,
)
from tieredstore.cli.app.chosen_bucket import open_chosen_bucket
from tieredstore.cli.app.steps import Tally, Yes, is_dry_run, way_to_apply
from tieredstore.cli.terminal.output import (
    JsonValue,
    complain,
    counted,
    human_count,
    human_time,
    iso_utc,
    print_json_line,
    print_lines,
)
from tieredstore.cli.terminal.progress import counting, tell_if_stopped
from tieredstore.cli.terminal.rows import SEGMENT, Row, column, field
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
from tieredstore.ops.keys.pairs import KeyPairFiles, generate_key_pair, passphrase_from
from tieredstore.ops.keys.sealing import KmsKey, seal_pair
from tieredstore.ops.keys.settings import add_key_pair, folder_of_pairs, list_pairs
from tieredstore.ops.keys.use import KeyNeed, NeedReason, cached_until_ms, key_totals, needs_of, note_rotated
from tieredstore.ops.listing import ListedSegment, SegmentTotals, list_encrypted, load_stream
from tieredstore.ops.steps import Outcome
from tieredstore.process.parallel import READERS

if TYPE_CHECKING:
    from tieredstore.config import EncryptionSettings, Settings
    from tieredstore.ops.bucket import Bucket
    from tieredstore.ops.keys.rotation import RotationStep
    from tieredstore.transform.keyring import KeyRing

PassphraseEnv: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--passphrase-env", metavar="NAME", help="Protect the private key by the passphrase in this variable."
    ),
]
PassphraseFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", metavar="FILE", help="Protect the private key by the passphrase in FILE's first line."
    ),
]

_NOTHING: Final = "nothing in it is encrypted"

_WORDS: Final = {
    Outcome.ACTIVE: "were under it already",
    Outcome.PLAIN: "are not encrypted",
    Outcome.UNKNOWN_KEY: "need a pair that is not on the ring",
    Outcome.WRONG_KEY: "are not opened by the pair of their id",
    Outcome.DAMAGED: "have a damaged manifest",
    Outcome.CHANGED: "were being changed by somebody else: run it again",
    Outcome.GONE: "were deleted meanwhile",
}
_NEEDS: Final = {
    NeedReason.WRAPPED: "segments are encrypted by it",
    NeedReason.DAMAGED: "manifests are damaged",
    NeedReason.UNCOMMITTED: "segments have no manifest",
    NeedReason.UNFINISHED: "writes have not ended",
    NeedReason.CACHED: "rotation from it, whose old manifests readers may hold",
}
_ASK: Final = "tieredstore keys check --retire ID"
_PLAIN: Final = "(not encrypted)"

app: Final = typer.Typer(no_args_is_help=True, help="Key pairs: make, count, rotate and retire them.")


Bits: TypeAlias = Annotated[
    int, typer.Option("--bits", metavar="BITS", min=2048, max=16384, help="Size of the RSA modulus.")
]


@app.callback()
def keys() -> None:
    """Key pairs: make, count, rotate and retire them."""


@app.command()
def rotate(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    topic_id: TopicId = None,
    parallel: Parallel = READERS,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Wrap every segment's data key again, under the active key pair (encryption.key.pair.id).

    Without --yes, only show what would be wrapped. Data and indexes stay as they are; in each manifest one text
    changes. Every writer and reader must have the new pair on its ring first. Stopped or killed, run it again. A
    segment whose pair is not on the ring, or does not open its data key, is named and left alone; the run ends with 4
    then.

    Example: tieredstore keys rotate -c store.properties --yes
    """
    from tieredstore.ops.keys.rotation import FAILURES, Rotation

    dry_run = is_dry_run(yes=yes, dry_run=dry_run)
    scope = choose_scope(topic, topic_id, partition)
    tally = Tally(Outcome.ROTATED, _WORDS, "segment", "rotated", dry_run=dry_run)
    old_keys: set[str] = set()
    with open_chosen_bucket(settings, store) as bucket:
        bucket.refuse_raw("keys rotate", _NOTHING)
        ring = _required_ring(bucket.settings)
        listed = list_encrypted(bucket.store, bucket.prefix, scope)
        rotation = Rotation(bucket.store, ring, rules=bucket.manifest_rules, dry_run=dry_run, parallel=parallel)
        with (
            tell_if_stopped(lambda: _tell_stopped(tally)),
            counting("checking" if dry_run else "rotating", "segments") as advance,
        ):
            for step in rotation.run(listed):
                tally.add(step.outcome)
                if step.outcome is Outcome.ROTATED and step.key_id is not None:
                    if step.key_id not in old_keys and not dry_run:
                        note_rotated(bucket.store, bucket.prefix, step.key_id)  # also if this is killed
                    old_keys.add(step.key_id)
                _tell(step, as_json=as_json)
                advance()
        cached_ms = bucket.settings.fetch.manifest_cache.retention_ms
        until_ms: list[int] = []
        for key_id in old_keys if not dry_run else ():
            note_rotated(bucket.store, bucket.prefix, key_id)
            if (one_ms := cached_until_ms(bucket.store, bucket.prefix, key_id, cached_ms)) is not None:
                until_ms.append(one_ms)
    if as_json:
        print_json_line({"summary": {**tally.by_name(), "active_key_id": ring.active_id, "dry_run": dry_run}})
    else:
        _print_rotation(tally, old_keys, ring.active_id, cached_ms, until_ms)
    if FAILURES & tally.counts.keys():
        raise typer.Exit(UnknownKeyError.exit_code)
    if tally.counts[Outcome.CHANGED]:
        raise typer.Exit(StoreUnavailableError.exit_code)


@app.command("list")
def list_keys(
    settings: SettingsPath = None,
    store: StoreUrl = None,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    topic_id: TopicId = None,
    parallel: Parallel = READERS,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """List the key pairs that segments are encrypted by: segments, bytes, and their oldest and newest last record.

    Reads every manifest, and needs no key. FIRST and LAST are the times (UTC) that the oldest and the newest segment
    end with; RING says whether the settings list the pair.

    Example: tieredstore keys list -c store.properties
    """
    scope = choose_scope(topic, topic_id, partition)
    with open_chosen_bucket(settings, store) as bucket, counting("reading", "manifests") as advance:
        bucket.refuse_raw("keys list", _NOTHING)
        totals = key_totals(_load(bucket, scope, parallel, advance))
        encryption = bucket.settings.encryption
    rows = sorted(totals.items(), key=lambda entry: (entry[0] is None, entry[0] or ""))
    _key_row(encryption).show(rows, as_json=as_json, empty="no segments found", wide=wide)


@app.command()
def check(
    retire: Annotated[str, typer.Option("--retire", metavar="ID", help="The pair that is to go.")],
    settings: SettingsPath = None,
    store: StoreUrl = None,
    parallel: Parallel = READERS,
    as_json: Json = False,
) -> None:
    """Say whether a key pair can be retired: nothing is printed and the exit code is 0 if nothing needs it any more.

    Else it lists what needs the pair, or may need it yet, and ends with 5. Where there is no segment at all, as under a
    wrong prefix, it ends with 3: that says nothing of the pair. Objects without a manifest and unfinished
    uploads count: they may be committed under the pair. First every writer must have another pair active; so must the
    settings that are given here.

    Example: tieredstore keys check --retire key1 -c store.properties
    """
    reasons: Counter[NeedReason] = Counter()
    with open_chosen_bucket(settings, store) as bucket, counting("reading", "manifests") as advance:
        bucket.refuse_raw("keys check", _NOTHING)
        encryption = bucket.settings.encryption
        listed = 0

        def count() -> None:
            nonlocal listed
            listed += 1
            advance()

        loaded = _load(bucket, Scope(), parallel, count)
        cached_ms = bucket.settings.fetch.manifest_cache.retention_ms
        for need in needs_of(bucket.store, bucket.prefix, loaded, retire, cached_ms=cached_ms):
            reasons[need.reason] += 1
            if as_json:
                print_json_line(_NEED.json(need))
            else:
                detail = f"  {need.detail}" if need.reason is NeedReason.CACHED else ""
                print_lines([f"{need.reason.value:12} {need.name}{detail}"])
    is_active = encryption is not None and encryption.key_pair_id == retire
    if as_json:
        counts = {reason.value: reasons[reason] for reason in NeedReason}
        needed = is_active or bool(reasons) or (None if not listed else False)
        sums: dict[str, JsonValue] = {"segments": listed, "key_id": retire, "active": is_active, "needed": needed}
        print_json_line({"summary": {**counts, **sums}})
    if retire not in _ring_ids(encryption):
        complain(f"the settings list no key pair {retire!r}: is it spelled as it should be?")
    if reasons:
        is_cached_alone = reasons.keys() == {NeedReason.CACHED}
        way_out = (
            ": ask again when their caches have let these go" if is_cached_alone else "; keys rotate wraps them anew"
        )
        complain(f"key pair {retire!r} is needed, or may be: {_sum_of(reasons)}{way_out}")
    if is_active:
        complain(f"key pair {retire!r} is the active one of these settings: what is copied next is encrypted by it")
    if reasons or is_active:
        raise typer.Exit(PreconditionFailedError.exit_code)
    if not listed:
        raise ResourceNotFoundError(
            f"no segments were found, which says nothing of key pair {retire!r}: check the bucket and key.prefix"
        )
    complain(f"nothing needs key pair {retire!r} any more: {counted(listed, 'segment')} checked")


@app.command()
def generate(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The pair's name; segments record it for good.")],
    directory: Annotated[
        Path, typer.Option("-d", "--directory", metavar="DIR", help="Where the two files go.", show_default="here")
    ] = Path(),
    bits: Bits = 3072,
    passphrase_env: PassphraseEnv = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make an RSA key pair, and print the settings that use it.

    Writes ID.private.pem (PKCS#8, readable by its owner alone) and ID.public.pem (X.509); existing files stay as they
    are. Whoever loses the private key loses the data.

    Example: tieredstore keys generate key1 -d /etc/kafka/keys
    """
    passphrase = passphrase_from(passphrase_env, passphrase_file)
    sys.stdout.write(settings_lines(generate_key_pair(key_id, directory, bits, passphrase=passphrase)))


@app.command()
def add(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The pair's name; segments record it for good.")],
    settings: SettingsPath = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "-d",
            "--directory",
            metavar="DIR",
            help="Where the two files go.",
            show_default="where the file's other pairs lie, or beside SETTINGS",
        ),
    ] = None,
    bits: Bits = 3072,
    passphrase_env: PassphraseEnv = None,
    passphrase_file: PassphraseFile = None,
    activate: Annotated[bool, typer.Option("--activate", help="New segments are encrypted by it from now on.")] = False,
) -> None:
    """Make an RSA key pair, and let it join those of the settings file.

    The active pair stays the active one unless there is none yet: first every reader and writer gets both pairs, then
    the new one becomes the active one. All other lines of the file stay as they are. What
    a killed run left is completed.

    Example: tieredstore keys add key2 -c store.properties
    """
    if settings is None:
        raise ConfigError("no settings file is named: give --settings FILE (-c)")
    if key_id in list_pairs(settings):
        raise ConfigError(f"{settings} lists the key pair {key_id!r} already; choose another id")
    passphrase = passphrase_from(passphrase_env, passphrase_file)
    folder = folder_of_pairs(settings) if directory is None else directory
    files = generate_key_pair(key_id, folder, bits, passphrase=passphrase, resumes=True)
    add_key_pair(settings, files, activate=activate)
    print_lines([f"{files.private}", f"{files.public}", f"{settings} lists {', '.join(list_pairs(settings))}"])


@app.command()
def seal(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The pair, one that the settings list.")],
    service: Annotated[
        str, typer.Option("--kms", metavar="NAME", help="The service: aws, gcp, azure, vault, or an installed one.")
    ],
    service_key: Annotated[
        str,
        typer.Option(
            "--kms-key", metavar="KEY", help="Its key: an ARN, a resource name, a key's URL, or Vault's MOUNT/KEY."
        ),
    ],
    settings: SettingsPath = None,
    endpoint_url: Annotated[
        str | None,
        typer.Option("--kms-endpoint-url", metavar="URL", help="Where it is, if not where its own tools look."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The new file.", show_default="ID.private.sealed beside SETTINGS"
        ),
    ] = None,
) -> None:
    """Seal a pair's private key by a key management service, and print the settings that open it there.

    The private key is read as the settings say, sealed, opened again and compared before the file is written. Once
    all readers and writers have the new settings, remove the private key from where it was; keep a copy off-line.

    Example: tieredstore keys seal key1 -c store.properties --kms aws --kms-key alias/kafka
    """
    if settings is None:
        raise ConfigError("no settings file is named: give --settings FILE (-c)")
    path = settings.absolute().parent / f"{key_id}.private.sealed" if output is None else output
    pair = seal_pair(load_settings(settings), key_id, KmsKey(service, service_key, endpoint_url), path)
    sys.stdout.write(_as_properties(pair))


def settings_lines(files: KeyPairFiles) -> str:
    """The lines of a settings file that encrypt with the pair alone."""
    alone = {"encryption.enabled": "true", "encryption.key.pair.id": files.key_id, PAIRS: files.key_id}
    return _as_properties(alone | files.settings())


def _as_properties(lines: Mapping[str, str]) -> str:
    return "".join(f"{javaproperties.join_key_value(name, value)}\n" for name, value in lines.items())


def _required_ring(settings: Settings) -> KeyRing:
    from tieredstore.remote.key_ring import key_ring_of

    ring = key_ring_of(settings)
    if ring is None:
        raise ConfigError(
            "the settings have no key ring to rotate to: set encryption.enabled, encryption.key.pair.id (the new pair) "
            "and encryption.key.pairs (the new pair and the old ones)"
        )
    return ring


def _tell(step: RotationStep, *, as_json: bool) -> None:
    if as_json:
        print_json_line(_ROTATION.json(step))
    elif step.reason is not None:
        complain(f"left alone: {step.reason}")


def _print_rotation(
    tally: Tally, old_keys: AbstractSet[str], active: str, cached_ms: int, until_ms: Sequence[int]
) -> None:
    rotated = tally.counts[Outcome.ROTATED]
    verb = tally.verb_of(Outcome.ROTATED)
    print_lines([f"{rotated} of {tally.counts.total()} segments {verb} to key pair {active!r}"])
    if left := tally.left_alone():
        print_lines([left])
    if tally.dry_run and rotated:
        print_lines([way_to_apply("rewritten")])
    elif old_keys:
        print_lines([_until(sorted(old_keys), cached_ms, until_ms)])


def _tell_stopped(tally: Tally) -> str:
    rotated = f"{tally.counts[Outcome.ROTATED]} segments {tally.verb_of(Outcome.ROTATED)}"
    return f"stopped; {rotated}; run again to go on"


def _until(old_keys: Sequence[str], cached_ms: int, until_ms: Sequence[int]) -> str:
    """Say until when readers need the old pairs: the time that ``keys check --retire`` goes by."""
    names = ", ".join(map(repr, old_keys))
    if cached_ms < 0:
        return f"readers keep manifests for ever (fetch.manifest.cache.retention.ms): restart them before {names} goes"
    if not until_ms:
        return f"readers need {names} until their caches have let the old manifests go; then ask: {_ASK}"
    return (
        f"readers need {names} until {iso_utc(max(until_ms))}, when their caches have let the old manifests go "
        f"(fetch.manifest.cache.retention.ms, of brokers too); then ask: {_ASK}"
    )


_ROTATION: Final[Row[RotationStep]] = Row(
    SEGMENT.of(lambda step: step.item),
    field("outcome", lambda step: step.outcome),
    field("key_id", lambda step: step.key_id),
    field("reason", lambda step: step.reason),
)
_NEED: Final[Row[KeyNeed]] = Row(
    field("name", lambda need: need.name),
    field("reason", lambda need: need.reason),
    field("detail", lambda need: need.detail or None),
)


def _key_row(encryption: EncryptionSettings | None) -> Row[tuple[str | None, SegmentTotals]]:
    """Declare the row of a key pair: its id (None for segments without encryption), and the totals of its segments."""
    on_ring, active = _ring_ids(encryption), None if encryption is None else encryption.key_pair_id

    def ring(key_id: str | None) -> str:
        if key_id is None:
            return ""
        return ("active" if key_id == active else "yes") if key_id in on_ring else "no"

    return Row(
        field("key_id", lambda row: row[0]),
        column(text("KEY PAIR"), lambda row: _PLAIN if row[0] is None else row[0]),
        field("segments", lambda row: row[1].segments, number("SEGMENTS", rank=1), human_count),
        field("size", lambda row: row[1].size, number("SIZE", rank=3), human_bytes),
        field("stored_size", lambda row: row[1].stored_size, number("STORED", rank=2), human_bytes),
        field("oldest_timestamp_ms", lambda row: row[1].oldest_ms, moment("FIRST"), human_time),
        field("oldest_timestamp", lambda row: iso_utc(row[1].oldest_ms)),
        field("newest_timestamp_ms", lambda row: row[1].newest_ms, moment("LAST"), human_time),
        field("newest_timestamp", lambda row: iso_utc(row[1].newest_ms)),
        field("on_the_ring", lambda row: row[0] in on_ring),
        field("active", lambda row: row[0] is not None and row[0] == active),
        column(word("RING"), lambda row: ring(row[0])),
    )


def _ring_ids(encryption: EncryptionSettings | None) -> tuple[str, ...]:
    return () if encryption is None else tuple(pair.id for pair in encryption.key_pairs)


def _sum_of(reasons: Mapping[NeedReason, int]) -> str:
    return ", ".join(f"{count} {_NEEDS[reason]}" for reason, count in sorted(reasons.items()))


def _load(bucket: Bucket, scope: Scope, parallel: int, advance: Callable[[], None]) -> Iterator[ListedSegment]:
    """The segments in scope, listed once the first is asked for; ``advance`` is called for each."""
    listed = list_encrypted(bucket.store, bucket.prefix, scope)
    for segment in load_stream(bucket.store, listed, rules=bucket.manifest_rules, parallel=parallel):
        advance()
        yield segment
