"""Checks of ``tieredstore doctor`` for an uploader: its broker, log directories and folders for hard links.

The doctor finds these checks by the entry point ``tieredstore.checks``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from tieredstore.errors import BrokerUnavailableError, ConfigError, TieredStoreError
from tieredstore.kafka.checkpoints import parse_broker_id, parse_cluster_id
from tieredstore.live.broker_state import BrokerState
from tieredstore.model import Uuid
from tieredstore.ops.doctor.checkup import Check, Verdict, catch_errors
from tieredstore.remote.stores import NamedStore
from tieredstore.uploader.broker import BrokerEnvironment, broker_environment, check_log_dir, has_failed
from tieredstore.uploader.links import find_hold_dir, hold_dir_of
from tieredstore.uploader.pins import free_percent
from tieredstore.uploader.settings import UploaderSettings, uploader_settings_from

_OWNER: Final = "run the uploader as the broker's user"
_NO_ID: Final = Uuid(bytes(16))


def checks(named: NamedStore) -> Iterator[Check]:
    """Check the broker and the folders that the settings ``uploader.*`` name. If there are no such settings, yield
    nothing. Take no lock and write nothing.
    """
    own = named.load_by(uploader_settings_from)
    if not own.kafka and own.model_fields_set <= {"kafka"}:
        return
    environment = broker_environment(own)
    check, cluster_id = _of_broker(environment, needs_ids=not named.load().endpoint.is_raw)
    yield check
    for log_dir in environment.log_dirs:
        yield from catch_errors("log_dir", partial(_of_log_dir, log_dir, environment.broker_id, cluster_id))
    working = [log_dir for log_dir in environment.log_dirs if not has_failed(log_dir)]
    yield from catch_errors("hold_dir", partial(_of_hold_dirs, own, working))


def _of_broker(environment: BrokerEnvironment, *, needs_ids: bool) -> tuple[Check, str | None]:
    """Return the check of the broker, and its cluster's id if it is known."""
    if not environment.client:
        return Check("broker", Verdict.SKIPPED, "no broker is named: uploader.kafka.bootstrap.servers is not set"), None
    servers, own_id = environment.client["bootstrap.servers"], environment.broker_id
    try:
        with BrokerState(environment.client) as state:
            members = state.members()
            # One topic is enough, because brokers before 2.8 return a zero id for every topic.
            ids = state.topic_ids(sorted({topic for topic, _ in state.leaders()})[:1])
    except TieredStoreError as error:
        return Check("broker", Verdict.BAD, str(error), exit_code=error.exit_code), None
    here = f"cluster {members.cluster_id} at {servers}"
    if needs_ids and _NO_ID in ids.values():
        sentence = f"{here} has no topic ids: the uploader needs Kafka 2.8 or later, and the same "
        sentence += "inter.broker.protocol.version"
        return Check("broker", Verdict.BAD, sentence, exit_code=ConfigError.exit_code), members.cluster_id
    if own_id not in members.brokers and own_id >= 0:
        known = ", ".join(map(str, sorted(members.brokers)))
        sentence = f"broker {own_id} is not running in {here}, whose brokers are {known}"
        sentence += f": start broker {own_id}, or correct uploader.broker.id"
        return Check("broker", Verdict.BAD, sentence, exit_code=BrokerUnavailableError.exit_code), members.cluster_id
    return Check("broker", Verdict.GOOD, f"broker {own_id} is running in {here}"), members.cluster_id


def _of_log_dir(log_dir: Path, broker_id: int, cluster_id: str | None) -> Iterator[Check]:
    check_log_dir(log_dir)
    try:
        raw = (log_dir / "meta.properties").read_bytes()
    except FileNotFoundError:
        sentence = f"{log_dir} has no meta.properties, so no broker uses it: correct uploader.log.dirs"
        yield Check("log_dir", Verdict.WARN, sentence)
        return
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read ({error.strerror}): {_OWNER}") from error
    owner, its_cluster = parse_broker_id(raw), parse_cluster_id(raw)
    if owner is not None and broker_id not in (-1, owner):
        sentence = f"{log_dir} belongs to broker {owner}, not {broker_id}: correct uploader.log.dirs"
        raise ConfigError(f"{sentence} or uploader.broker.id")
    if None not in (its_cluster, cluster_id) and its_cluster != cluster_id:
        sentence = f"{log_dir} belongs to cluster {its_cluster}, but the broker belongs to cluster {cluster_id}"
        raise ConfigError(f"{sentence}: correct uploader.log.dirs or the broker's address")
    for log in islice(log_dir.glob("*/*.log"), 1):
        if not os.access(log, os.R_OK):
            raise ConfigError(f"{log} cannot be read: {_OWNER}")
    of = f" of cluster {its_cluster}" if its_cluster else ""
    yield Check("log_dir", Verdict.GOOD, f"{log_dir} belongs to broker {owner}{of}")


def _of_hold_dirs(own: UploaderSettings, log_dirs: Sequence[Path]) -> Iterator[Check]:
    if not own.hold_dir:
        sentence = "uploader.hold.dir is not set: segments that Kafka deletes while no uploader runs are lost"
        yield Check("hold_dir", Verdict.WARN, sentence)
    for path in own.hold_dir:
        yield from catch_errors("hold_dir", partial(_of_hold_dir, path, own, log_dirs))
    folders = [folder for folder in own.hold_dir if not has_failed(folder) and folder.is_dir()]
    for log_dir in log_dirs:
        if folders and log_dir.is_dir():
            find_hold_dir(log_dir, folders)


def _of_hold_dir(path: Path, own: UploaderSettings, log_dirs: Sequence[Path]) -> Iterator[Check]:
    folder = hold_dir_of(path, log_dirs)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"uploader.hold.dir: {folder} cannot be written: {_OWNER}, and make it this user's folder")
    device = folder.stat().st_dev
    covered = [log_dir for log_dir in log_dirs if log_dir.is_dir() and log_dir.stat().st_dev == device]
    if not covered:
        yield Check("hold_dir", Verdict.WARN, f"{folder} is not used, because no log directory is on its file system")
        return
    # The kernel refuses hard links to files of another user that this process cannot write (fs.protected_hardlinks).
    log = next((log for log_dir in covered for log in log_dir.glob("*/*.log")), None)
    if log is not None and os.geteuid() not in (0, log.stat().st_uid) and not os.access(log, os.W_OK):
        raise ConfigError(f"only the owner of {log} can link it into {folder}: {_OWNER}")
    free, least = free_percent(folder), own.hold_min_free_percent
    # Warn at twice the limit, because below the limit segments are lost.
    if free < 2 * least:
        sentence = f"the disk of {folder} has only {free:.0f} % free: below {least} % (uploader.hold.min.free.percent)"
        sentence += ", the uploader drops segments that Kafka has deleted, and they are lost;"
        sentence += " make the store reachable, or free disk space"
        yield Check("hold_dir", Verdict.WARN, sentence, {"free_percent": free})
        return
    shown = ", ".join(map(str, covered))
    sentence = f"{folder} can be written, is on the file system of {shown} and has {free:.0f} % free"
    yield Check("hold_dir", Verdict.GOOD, sentence, {"free_percent": free})
