"""What ``tieredstore pubsub audit`` shows: what became of each producer's requests."""

from __future__ import annotations

from typing import Final

import typer

from tieredstore.cli.output import JsonValue, counted, iso_utc, print_json_line, print_lines
from tieredstore.pubsub.audit import AuditFault, AuditFinding, TopicAudit
from tieredstore.pubsub.topics import Topics

_FAULTY_CODE: Final = 4


def show_audit(
    topics: Topics, name: str, *, now_ms: int, settle_ms: int | None, late_ms: int, bodies: bool, as_json: bool
) -> None:
    """The command; typer.Exit with 4 if anything is lost, doubled, late or altered."""
    settle_ms = topics.settings.pubsub.delivery_timeout_ms if settle_ms is None else settle_ms
    audit = TopicAudit(topics, topics.get(name), now_ms, settle_ms, late_ms, bodies)
    for finding in audit.run():
        if as_json:
            print_json_line(_row(name, finding))
        else:
            print_lines([_line(finding)])
    if as_json:
        faults: dict[str, JsonValue] = {fault.value: audit.requests[fault] for fault in AuditFault}
        sums: dict[str, JsonValue] = {
            "producers": audit.producers, "message_count": audit.messages, "records": audit.records,
        }  # fmt: skip
        print_json_line({"summary": sums | faults})
    else:
        print_lines([_summary(name, audit)])
    if any(audit.requests[fault] for fault in AuditFault if fault is not AuditFault.PENDING):
        raise typer.Exit(_FAULTY_CODE)


def _row(topic: str, finding: AuditFinding) -> dict[str, JsonValue]:
    address, started_ms = (None, None) if finding.producer is None else finding.producer
    return {
        "topic": topic,
        "fault": finding.fault.value,
        "producer_address": None if address is None else address.hex(),
        "producer_started": None if started_ms is None else iso_utc(started_ms),
        "producer_started_ms": started_ms,
        "request_id": finding.first,
        "last_request_id": finding.last,
        "partition": finding.partition,
        "offset": finding.offset,
        "object": finding.key,
        "reason": finding.why,
    }


def _line(finding: AuditFinding) -> str:
    if finding.producer is None or finding.first is None:
        return f"{finding.fault}: {finding.why}"
    address, started_ms = finding.producer
    requests = f"request {finding.first}" if finding.first == finding.last else (
        f"requests {finding.first} to {finding.last}"
    )  # fmt: skip
    return f"{finding.fault}: {requests} of producer {address.hex()}, started {iso_utc(started_ms)}: {finding.why}"


def _summary(topic: str, audit: TopicAudit) -> str:
    if not audit.messages and not audit.requests:
        return f"no Messages in topic {topic}"
    faults = ", ".join(f"{audit.requests[fault]} {fault}" for fault in AuditFault if audit.requests[fault])
    seen = f"{counted(audit.messages, 'Message')} of {counted(audit.producers, 'producer')} in topic {topic}"
    return f"{seen}: {faults or 'each request stands once'}"
