"""Wrong answers in Azure Blob Storage's protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.support.faulty_server.answer_ways import but, header, instead
from tests.support.faulty_server.azure import batch_reply, numbers_of, sub_answer
from tests.support.faulty_server.service import Cloud, Step
from tests.support.faulty_server.way import Exchange, Must, Way, rewritten
from tests.support.faulty_server.wire import Answer, Reply

_AZURE: Final = (Cloud.AZURE,)
_LIST: Final = (Step.LIST,)
_HEAD: Final = (Step.HEAD,)
_WRITES: Final = (Step.WRITE, Step.COMPLETE)
_BULK: Final = (Step.BULK,)


def _swapped(reply: Reply) -> Reply:
    """Reverse the order of the entries."""
    head, _, rest = reply.body.partition(b"<Blobs>")
    blobs, _, tail = rest.partition(b"</Blobs>")
    entries = [entry + b"</Blob>" for entry in blobs.split(b"</Blob>") if entry]
    return reply.changed(body=head + b"<Blobs>" + b"".join(reversed(entries)) + b"</Blobs>" + tail)


def _batch(
    first: int, others: int = 202, numbers: Callable[[list[str]], list[str]] = lambda asked: asked
) -> Callable[[Exchange], Answer]:
    """Answer a batch of deletions without executing it. In the answer, the first deletion has the status ``first``, all
    later ones have the status ``others``. ``numbers`` chooses which deletions the answer names.
    """

    def answer(exchange: Exchange) -> Answer:
        named = numbers(numbers_of(exchange.request))
        return batch_reply(sub_answer(number, others if at else first, "no") for at, number in enumerate(named))

    return answer


def _failed_without_words(exchange: Exchange) -> Answer:
    return exchange.service.refusal(409, "")


LISTING_WAYS: Final = (
    Way("a blob without a Name", _AZURE, _LIST, Must.REFUSED, rewritten("<Name>.*?</Name>", "", count=1)),
    Way("a blob with an empty Name", _AZURE, _LIST, Must.REFUSED, rewritten("<Name>.*?</Name>", "<Name/>", count=1)),
    Way(
        "a blob without Properties", _AZURE, _LIST, Must.REFUSED, rewritten("<Properties>.*?</Properties>", "", count=1)
    ),
    Way(
        "a blob without a length",
        _AZURE,
        _LIST,
        Must.REFUSED,
        rewritten("<Content-Length>.*?</Content-Length>", "", count=1),
    ),
    Way(
        "a length in words",
        _AZURE,
        _LIST,
        Must.REFUSED,
        rewritten("<Content-Length>.*?<", "<Content-Length>twelve<", count=1),
    ),
    Way(
        "a negative length",
        _AZURE,
        _LIST,
        Must.REFUSED,
        rewritten("<Content-Length>.*?<", "<Content-Length>-12<", count=1),
    ),
    Way(
        "a length of 30 digits",
        _AZURE,
        _LIST,
        Must.REFUSED,
        rewritten("<Content-Length>.*?<", f"<Content-Length>{'9' * 30}<", count=1),
    ),
    Way(
        "a blob of no time",
        _AZURE,
        _LIST,
        Must.REFUSED,
        rewritten("<Last-Modified>.*?<", "<Last-Modified>yesterday<", count=1),
    ),
    Way("no times", _AZURE, _LIST, Must.RIGHT, rewritten("<Last-Modified>.*?</Last-Modified>", "")),
    Way("no etags of blobs", _AZURE, _LIST, Must.RIGHT, rewritten("<Etag>.*?</Etag>", "")),
    Way("blobs out of order", _AZURE, _LIST, Must.REFUSED, but(_swapped)),
    Way("a blob twice", _AZURE, _LIST, Must.REFUSED, rewritten("(<Blob>.*?</Blob>)", r"\1\1", count=1)),
    Way("no Blobs", _AZURE, _LIST, Must.REFUSED, rewritten("<Blobs>.*?</Blobs>", "")),
    Way("no NextMarker", _AZURE, _LIST, Must.REFUSED, rewritten("<NextMarker>.*?</NextMarker>", "")),
    Way("a document of another kind", _AZURE, _LIST, Must.REFUSED, rewritten("EnumerationResults", "Surprise")),
    Way("a document that ends early", _AZURE, _LIST, Must.UNAVAILABLE, rewritten("</Blob>.*", "</Blob>")),
    Way(
        "100,000 elements within each other",
        _AZURE,
        _LIST,
        Must.REFUSED,
        instead(200, b"<a>" * 100_000, Content_Type="application/xml"),
    ),
)
OBJECT_WAYS: Final = (
    Way("a HEAD without a time", _AZURE, _HEAD, Must.REFUSED, header("Last-Modified", None)),
    Way("a HEAD of no time", _AZURE, _HEAD, Must.REFUSED, header("Last-Modified", "yesterday")),
    Way("a HEAD of an unknown type", _AZURE, _HEAD, Must.REFUSED, header("x-ms-blob-type", "Surprise")),
    Way("a blob written without an ETag", _AZURE, _WRITES, Must.RIGHT, header("ETag", None)),
    Way("a blob written at no time", _AZURE, _WRITES, Must.RIGHT, header("Last-Modified", "yesterday")),
    Way("a blob not written, and no ETag", _AZURE, _WRITES, Must.REFUSED, instead(201)),
    Way("a block answered with 202", _AZURE, (Step.PART,), Must.REFUSED, instead(202)),
    Way(
        "a list of blocks without blocks",
        _AZURE,
        (Step.COMPLETE,),
        Must.UNAVAILABLE,
        lambda exchange: exchange.service.refusal(400, "InvalidBlockList"),
    ),
)
ERROR_WAYS: Final = (
    Way(
        "fewer deletions than were asked for",
        _AZURE,
        _BULK,
        Must.REFUSED,
        _batch(202, numbers=lambda asked: asked[:-1]),
    ),
    Way(
        "more deletions than were asked for",
        _AZURE,
        _BULK,
        Must.REFUSED,
        _batch(202, numbers=lambda asked: [*asked, str(len(asked))]),
    ),
    Way(
        "one deletion twice",
        _AZURE,
        _BULK,
        Must.REFUSED,
        _batch(202, numbers=lambda asked: [asked[0], asked[0], *asked[1:-1]]),
    ),
    Way("deletions of statuses that are none", _AZURE, _BULK, Must.REFUSED, _batch(999, 999)),
    Way("a deletion that fails", _AZURE, _BULK, Must.UNAVAILABLE, _batch(500)),
    Way("a deletion that is denied", _AZURE, _BULK, Must.DENIED, _batch(403, 403)),
    Way("a batch of another type", _AZURE, _BULK, Must.REFUSED, header("Content-Type", "text/plain")),
    Way("a batch without a boundary", _AZURE, _BULK, Must.REFUSED, header("Content-Type", "multipart/mixed")),
    Way("an error without a code", _AZURE, (Step.LIST, Step.READ, Step.WRITE), Must.REFUSED, _failed_without_words),
)
AZURE_WAYS: Final = (*LISTING_WAYS, *OBJECT_WAYS, *ERROR_WAYS)
"""All wrong answers for Azure."""
