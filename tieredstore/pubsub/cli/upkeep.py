"""Output of ``pubsub gc`` and ``verify``.

This module is separate from ``pubsub``, which imports this module only to run a command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import typer

from tieredstore.api.outcomes import Outcome
from tieredstore.cli.app.outcomes import Words, carry_out
from tieredstore.cli.terminal.output import JsonValue, complain, iso_utc, print_json_line, print_lines, quantity
from tieredstore.cli.terminal.rows import Row, attributes, field
from tieredstore.model import human_bytes
from tieredstore.pubsub.queue.topics import Topics
from tieredstore.pubsub.upkeep.audit import AuditFault, AuditFinding, TopicAudit
from tieredstore.pubsub.upkeep.garbage import plan_gc

_FAULTY_CODE: Final = 4
_NO_FAULTS: Final = frozenset({AuditFault.PENDING, AuditFault.LOST_OR_EMPTY, AuditFault.UNANNOUNCED})


def show_audit(audit: TopicAudit, *, as_json: bool) -> None:
    """Run ``verify``; raise typer.Exit with 4 if anything is lost, doubled, late or altered."""
    name = audit.log.topic.name
    for finding in audit.run():
        _show(name, finding, as_json=as_json)
    if as_json:
        read: dict[str, JsonValue] = {
            "batches": audit.batches, "batch_bytes": audit.batch_bytes, "bodies_read": audit.bodies
        }  # fmt: skip
        _sums(audit.requests, producers=audit.producers, messages=audit.messages, records=audit.records, read=read)
    else:
        print_lines([_summary(name, audit)])
    _exit_if_faulty(audit.requests)


def pair_audit_records(
    topics: Topics, name: str, settle_ms: int | None, late_ms: int, since_ms: int | None, *, follow: bool, as_json: bool
) -> None:
    """Run ``verify --audit-records``; raise typer.Exit with 4 if anything is lost, late or altered. With ``follow``,
    run ``verify --follow`` instead, and raise typer.Exit with the service's code.

    ``settle_ms`` is the time within which consumers should read a Message; None means MemQ's value.
    """
    from tieredstore.pubsub.upkeep.audit_log import SETTLE_MS, AuditLog, AuditPairs, audit_service, now_ms

    settle_ms = SETTLE_MS if settle_ms is None else settle_ms
    pairs = AuditPairs(settle_ms=settle_ms, late_ms=late_ms, begin_ms=since_ms or 0)
    show = partial(_show, name, as_json=as_json)
    with AuditLog(topics, name, pairs, since_ms) as log:
        if follow:
            raise typer.Exit(audit_service(log, show).run())
        for findings in (log.read(now_ms), log.pending()):
            for finding in findings:
                show(finding)
        counts, producers = pairs.counts, len(pairs.producers)
        if as_json:
            _sums(log.requests, producers=producers, messages=counts.produced, records=counts.paired_records)
        else:
            sent = f"{quantity(counts.produced, 'Message')} sent to topic {name} by {quantity(producers, 'producer')}"
            said = _faults(log.requests) or "all read as sent"
            print_lines([f"{sent}: {said}, by audit records alone"])
        _exit_if_faulty(log.requests)


def _show(topic: str, finding: AuditFinding, *, as_json: bool) -> None:
    if as_json:
        print_json_line({"topic": topic, **_FINDING.json(finding)})
    else:
        print_lines([_line(finding)])


def _sums(
    requests: Counter[AuditFault],
    *,
    producers: int,
    messages: int,
    records: int,
    read: dict[str, JsonValue] | None = None,
) -> None:
    faults: dict[str, JsonValue] = {fault.value: requests[fault] for fault in AuditFault}
    sums: dict[str, JsonValue] = {"producers": producers, "message_count": messages, "records": records}
    print_json_line({"summary": sums | (read or {}) | faults})


def _exit_if_faulty(requests: Counter[AuditFault]) -> None:
    if any(requests[fault] for fault in AuditFault if fault not in _NO_FAULTS):
        raise typer.Exit(_FAULTY_CODE)


_FINDING: Final[Row[AuditFinding]] = Row(
    field("fault", lambda finding: finding.fault),
    field("producer_address", lambda finding: finding.producer and finding.producer[0].hex()),
    field("producer_started", lambda finding: finding.producer and iso_utc(finding.producer[1])),
    field("producer_started_ms", lambda finding: finding.producer and finding.producer[1]),
    field("request_id", lambda finding: finding.first),
    field("last_request_id", lambda finding: finding.last),
    attributes("partition", "offset"),
    field("object", lambda finding: finding.key),
    field("reason", lambda finding: finding.why),
)


def _line(finding: AuditFinding) -> str:
    if finding.producer is None or finding.first is None:
        return f"{_words(finding.fault)}: {finding.why}"
    address, started_ms = finding.producer
    requests = f"request {finding.first}" if finding.first == finding.last else (
        f"requests {finding.first} to {finding.last}"
    )  # fmt: skip
    producer = f"producer {address.hex()}, started {iso_utc(started_ms)}"
    return f"{_words(finding.fault)}: {requests} of {producer}: {finding.why}"


def _summary(topic: str, audit: TopicAudit) -> str:
    if not audit.messages and not audit.requests:
        return f"no Messages in topic {topic}"
    seen = f"{quantity(audit.messages, 'Message')} of {quantity(audit.producers, 'producer')} in topic {topic}"
    objects = f"{quantity(audit.batches, 'object')} ({human_bytes(audit.batch_bytes)})"
    read = f"{objects} read in full" if audit.bodies else f"only headers of {objects} read (see --bodies)"
    return f"{seen}: {_faults(audit.requests) or 'each request is stored once'}; {read}"


def _faults(requests: Counter[AuditFault]) -> str:
    return ", ".join(f"{requests[fault]} {_words(fault)}" for fault in AuditFault if requests[fault])


def _words(fault: AuditFault) -> str:
    return fault.replace("_", " ")


def collect_garbage(
    topics: Topics, names: Sequence[str], min_age: timedelta, *, adopt: bool, yes: bool, as_json: bool
) -> None:
    """Run ``gc``."""
    warnings: list[str] = []
    plan = plan_gc(topics, names, min_age=min_age, adopt=adopt, warn=warnings.append)
    try:
        carry_out(plan, _WORDS, yes=yes, as_json=as_json, store=topics.store)
    finally:  # also if the plan raises the errors of refused topics at its end
        for warning in warnings:
            complain(warning)


def _show_object(outcome: Outcome, verb: str) -> str:
    size = outcome.stored_size if outcome.size is None else outcome.size
    return f"{verb}: {outcome.name}" + ("" if size is None else f" ({human_bytes(size)})")


_WORDS: Final = Words(
    noun="object",
    done="deleted",
    doing="collecting",
    show=_show_object,
    also={
        "freed": "freed by retention, deleted later",
        "adopted": "orphans, now published: repeats records that were sent again after DeliveryFailedError",
    },
    left={
        "waiting": "freed by an earlier run, may still be read",
        "young": "without a notification, too young",
        "forgotten": "without a notification, older than the queue's oldest notification",
        "damaged": "orphans that are not batches",
    },
    none="nothing to collect",
)
