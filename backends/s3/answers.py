"""What the documents of S3's answers must be, before the SDK reads them: it takes any XML for any of them, or none."""

from __future__ import annotations

import re
from typing import Any, Final

from tieredstore.backends.cloud.answers import breaks_off, shown_body
from tieredstore.backends.cloud.errors import MalformedAnswer

_ROOTS: Final = {
    "ListObjectsV2": "ListBucketResult",
    "ListMultipartUploads": "ListMultipartUploadsResult",
    "ListParts": "ListPartsResult",
    "DeleteObjects": "DeleteResult",
    "CreateMultipartUpload": "InitiateMultipartUploadResult",
    "CompleteMultipartUpload": "CompleteMultipartUploadResult",
    "GetBucketVersioning": "VersioningConfiguration",
    "GetObjectLockConfiguration": "ObjectLockConfiguration",
}
"""What the answer to an operation is called."""

_WITHOUT: Final = frozenset({"PutObject", "UploadPart", "DeleteObject"})
"""Operations whose answers have no document."""

_TRUNCATED: Final = re.compile(rb"<(?:\w+:)?IsTruncated>(?!\s*(?:true|false)\s*<)")
_ROOT: Final = re.compile(rb"\s*(?:<\?xml[^>]*>)?\s*(?:<!--.*?-->\s*)*<(?:\w+:)?(\w+)[\s/>]", re.DOTALL)


def check_document(operation_model: Any, response_dict: Any, **_: object) -> None:
    """MalformedAnswer for the answer of a success that is not the operation's document; for botocore, before it parses.

    An error in an answer of status 200 passes: the SDK looks for those.
    """
    name, status, body = operation_model.name, response_dict["status_code"], response_dict["body"]
    length = response_dict["headers"].get("Content-Length", "0")
    if name == "GetObject" and status < 300 and not (length.isascii() and length.isdigit()):
        # The SDK fails on it, and leaves the connection open.
        body.close()
        raise MalformedAnswer(f"{name}: the store answered with a Content-Length of {length!r:.80}")
    if status >= 300 or (name not in _ROOTS and name not in _WITHOUT) or not isinstance(body, bytes):
        return
    match = _ROOT.match(body[:4096])
    root = "" if match is None else match[1].decode()
    expected = _ROOTS.get(name, "")
    if (
        (expected and breaks_off(body))
        or root == "Error"
        or (root == expected and bool(expected) == bool(body) and _TRUNCATED.search(body) is None)
    ):
        return
    raise MalformedAnswer(
        f"{name}: the store answered with status {status} and {shown_body(body)}, "
        + (f"which is no {expected}" if expected else "though such an answer has no body")
    )
