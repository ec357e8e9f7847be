"""Wrong answers in S3's protocol."""

from __future__ import annotations

from typing import Final

from tests.support.faulty_server.answer_ways import but, header, instead
from tests.support.faulty_server.s3 import document, elements
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way, rewritten
from tests.support.faulty_server.wire import Answer, Reply

_S3: Final = (Cloud.S3,)
_LIST: Final = (Step.LIST,)
_BEGIN: Final = (Step.BEGIN,)
_COMPLETE: Final = (Step.COMPLETE,)
_BULK: Final = (Step.BULK,)
_DEEP: Final = b"<a>" * 100_000
_LAUGHS: Final = b"".join(
    [
        b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY l0 "laugh">',
        *(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">'.encode() for n in range(1, 9)),
        b"]><ListBucketResult><Name>&l8;</Name></ListBucketResult>",
    ]
)


def _error(status: int, code: str) -> Answer:
    return Reply(status, f"<Error>{elements(Code=code, Message='no')}</Error>".encode())


def _completed_elsewhere(_: Exchange) -> Answer:
    content = elements(Bucket="bucket", Key="new", ETag='"00000000000000000000000000000000-2"')
    return Reply(200, document("CompleteMultipartUploadResult", content))


def _another_etag(exchange: Exchange) -> Answer:
    exchange.honest()
    return _completed_elsewhere(exchange)


def _spaces_then_error(_: Exchange) -> Answer:
    return Reply(200, b"   \n   <Error><Code>InternalError</Code><Message>no</Message></Error>")


def _swapped(reply: Reply) -> Reply:
    """Reverse the order of the entries."""
    head, *entries = reply.body.split(b"<Contents>")
    if len(entries) < 2:
        return reply
    last, _, tail = entries[-1].partition(b"</Contents>")
    contents = [entry.partition(b"</Contents>")[0] for entry in entries[:-1]] + [last]
    return reply.changed(body=head + b"".join(b"<Contents>" + c + b"</Contents>" for c in reversed(contents)) + tail)


LISTING_WAYS: Final = (
    Way(
        "truncated, without a token",
        _S3,
        _LIST,
        Must.REFUSED,
        rewritten("<NextContinuationToken>.*?</NextC[a-zA-Z]*>", ""),
    ),
    Way(
        "truncated, with an empty token",
        _S3,
        _LIST,
        Must.REFUSED,
        rewritten("<NextContinuationToken>.*?<", "<NextContinuationToken><"),
    ),
    Way(
        "truncated or not in other words",
        _S3,
        _LIST,
        Must.REFUSED,
        rewritten("<IsTruncated>.*?<", "<IsTruncated>perhaps<"),
    ),
    Way("an entry without a Key", _S3, _LIST, Must.REFUSED, rewritten("<Key>.*?</Key>", "", count=1)),
    Way("an entry with an empty Key", _S3, _LIST, Must.REFUSED, rewritten("<Key>.*?</Key>", "<Key/>", count=1)),
    Way("an entry without a Size", _S3, _LIST, Must.REFUSED, rewritten("<Size>.*?</Size>", "", count=1)),
    Way("a Size in words", _S3, _LIST, Must.REFUSED, rewritten("<Size>.*?<", "<Size>twelve<", count=1)),
    Way("a negative Size", _S3, _LIST, Must.REFUSED, rewritten("<Size>.*?<", "<Size>-12<", count=1)),
    Way("a Size of 30 digits", _S3, _LIST, Must.REFUSED, rewritten("<Size>.*?<", f"<Size>{'9' * 30}<", count=1)),
    Way("a Size of 5,000 digits", _S3, _LIST, Must.REFUSED, rewritten("<Size>.*?<", f"<Size>{'9' * 5000}<", count=1)),
    Way(
        "a date that is none",
        _S3,
        _LIST,
        Must.REFUSED,
        rewritten("<LastModified>.*?<", "<LastModified>yesterday<", count=1),
    ),
    Way("no dates", _S3, _LIST, Must.RIGHT, rewritten("<LastModified>.*?</LastModified>", "")),
    Way("no etags", _S3, _LIST, Must.RIGHT, rewritten("<ETag>.*?</ETag>", "")),
    Way("out of order", _S3, _LIST, Must.REFUSED, but(_swapped)),
    Way("the first key twice", _S3, _LIST, Must.REFUSED, rewritten("(<Contents>.*?</Contents>)", r"\1\1", count=1)),
    Way("a page of another kind", _S3, _LIST, Must.REFUSED, rewritten("ListBucketResult", "ListAllMyBucketsResult")),
    Way("a page that ends early", _S3, _LIST, Must.UNAVAILABLE, rewritten("</Contents>.*", "</Contents>")),
    Way(
        "bytes that are no UTF-8",
        _S3,
        _LIST,
        Must.UNAVAILABLE,
        but(lambda reply: reply.changed(body=reply.body.replace(b"<Key>", b"<Key>\xff\xfe"))),
    ),
    Way("100,000 elements in each other", _S3, _LIST, Must.REFUSED, instead(200, _DEEP)),
    Way("entities that grow", _S3, _LIST, Must.REFUSED, instead(200, _LAUGHS)),
    Way("an Error in a 200", _S3, _LIST, Must.UNAVAILABLE, lambda _: _error(200, "InternalError")),
)
UPLOAD_WAYS: Final = (
    Way("a write without an ETag, done", _S3, (Step.WRITE,), Must.RIGHT, header("ETag", None)),
    Way("a write with another ETag, done", _S3, (Step.WRITE,), Must.RIGHT, header("ETag", '"0"')),
    Way("a write with an ETag, not done", _S3, (Step.WRITE,), Must.REFUSED, instead(200, ETag='"0"')),
    Way(
        "an upload without an UploadId",
        _S3,
        _BEGIN,
        Must.REFUSED,
        instead(200, document("InitiateMultipartUploadResult", "<Key>new</Key>")),
    ),
    Way(
        "an upload with an empty UploadId",
        _S3,
        _BEGIN,
        Must.REFUSED,
        instead(200, document("InitiateMultipartUploadResult", "<UploadId/>")),
    ),
    Way(
        "an upload of another kind",
        _S3,
        _BEGIN,
        Must.REFUSED,
        instead(200, document("Surprise", "<UploadId>1</UploadId>")),
    ),
    Way("a part without an ETag", _S3, (Step.PART,), Must.REFUSED, header("ETag", None)),
    Way("a part with an empty ETag", _S3, (Step.PART,), Must.REFUSED, header("ETag", "")),
    Way("completed without an ETag", _S3, _COMPLETE, Must.RIGHT, rewritten("<ETag>.*?</ETag>", "")),
    Way("completed with another ETag", _S3, _COMPLETE, Must.RIGHT, _another_etag),
    Way("completed in words only", _S3, _COMPLETE, Must.REFUSED, _completed_elsewhere),
    Way("completed by an Error in a 200", _S3, _COMPLETE, Must.UNAVAILABLE, _spaces_then_error),
    Way("completed by a refusal in a 200", _S3, _COMPLETE, Must.DENIED, lambda _: _error(200, "AccessDenied")),
)
ERROR_WAYS: Final = (
    Way(
        "409 with a conflict",
        _S3,
        (Step.WRITE, Step.COMPLETE),
        Must.UNAVAILABLE,
        lambda _: _error(409, "ConditionalRequestConflict"),
    ),
    Way(
        "409 with another code",
        _S3,
        (Step.WRITE, Step.LIST, Step.READ),
        Must.REFUSED,
        lambda _: _error(409, "InvalidBucketState"),
    ),
    Way("an Error without a Code", _S3, _LIST, Must.REFUSED, instead(400, b"<Error><Message>no</Message></Error>")),
    Way(
        "an Error with two Codes",
        _S3,
        _LIST,
        Must.REFUSED,
        instead(400, b"<Error><Code>A</Code><Code>B</Code></Error>"),
    ),
    Way(
        "deleted but for one",
        _S3,
        _BULK,
        Must.DENIED,
        instead(200, document("DeleteResult", "<Error><Key>kept/0</Key><Code>AccessDenied</Code></Error>")),
    ),
    Way(
        "a failed deletion without words",
        _S3,
        _BULK,
        Must.REFUSED,
        instead(200, document("DeleteResult", "<Error></Error>")),
    ),
    Way("deletions not known", _S3, _BULK, Must.RIGHT, lambda _: _error(501, "NotImplemented")),
    Way(
        "uploads without an UploadId",
        _S3,
        (Step.UPLOADS,),
        Must.REFUSED,
        instead(200, document("ListMultipartUploadsResult", "<Upload><Key>a</Key></Upload>")),
    ),
    Way(
        "uploads truncated, without markers",
        _S3,
        (Step.UPLOADS,),
        Must.REFUSED,
        instead(200, document("ListMultipartUploadsResult", "<IsTruncated>true</IsTruncated>")),
    ),
    Way(
        "uploads of no date",
        _S3,
        (Step.UPLOADS,),
        Must.REFUSED,
        instead(200, document("ListMultipartUploadsResult", "<Upload><Key>a</Key><UploadId>b</UploadId></Upload>")),
    ),
)
S3_WAYS: Final = (*LISTING_WAYS, *UPLOAD_WAYS, *ERROR_WAYS)
"""All wrong answers for S3."""
