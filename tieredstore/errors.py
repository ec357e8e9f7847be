"""The error tree, and texts from elsewhere in messages: shortened, quoted, and without credentials.

Every error of the library derives from :class:`TieredStoreError`. The class attributes of an error tell the caller what
to do; no caller needs to parse the message::

    TieredStoreError                         retryable  exit_code
    ├── ConfigError                          no         2   a user's setting or argument is wrong
    │   └── NewerVersionError                no         2   state that a later release wrote: upgrade tieredstore
    ├── EncryptionError                      no         1   missing or wrong keys of encrypted data
    │   ├── KeyRingError                     no         2   unusable key files or key ids; also a ConfigError
    │   │   └── WrongKeyError                no         4   the pair with this id does not open the data key
    │   ├── UnknownKeyError                  no         4   data wrapped by a key that is not on the ring
    │   └── KeyServiceError                  no         6   the key management service refused the request
    │       ├── KeyServiceDeniedError        no         6   the service refuses the credentials
    │       └── KeyServiceUnavailableError   yes        75  no answer in time: try again
    ├── InvalidRangeError                    no         2   a byte range outside of the object
    ├── InvalidSegmentError                  no         2   local segment files that cannot be copied
    │   └── SegmentConflictError             no         2   another segment has its name, in the raw layout
    ├── InvalidRecordError                   no         2   a record that MemQ's format cannot hold
    ├── ResourceNotFoundError                no         3   absent: it never existed, or was deleted
    │   ├── TopicNotFoundError               no         3   no topic of this name
    │   ├── SegmentNotFoundError             no         3   no committed segment (no manifest)
    │   ├── IndexNotRecordedError            no         3   the segment was copied without this index
    │   ├── ObjectNotFoundError              no         3   no object has this key
    │   ├── PreparedGoneError                no         3   the bytes prepared for an object have expired
    │   ├── SchemaNotFoundError              no         3   no schema of this id or subject in the registry
    │   └── DataLossError                    no         3   offsets in no segment, although later ones exist
    ├── CorruptDataError                     no         4   bytes exist, but are wrong
    │   ├── ManifestCorruptError             no         4
    │   ├── SegmentCorruptError              no         4   the .log object: missing, short, or altered
    │   ├── IndexesCorruptError              no         4   the .indexes object: missing, short, or altered
    │   ├── BatchCorruptError                no         4   Kafka's own bytes: batches, indexes, checkpoints
    │   ├── CommitLogCorruptError            no         4   a pipeline's record of the files it has written
    │   ├── MessageCorruptError              no         4   MemQ's batches: index, Message, records
    │   ├── NotificationCorruptError         no         4   a notification that does not point to a batch
    │   └── PacketCorruptError               no         4   received bytes that are no packet of MemQ
    ├── InvalidValueError                    no         4   a key or value does not match its type
    ├── SegmentAlreadyExistsError            no         5   this segment id already has a manifest
    ├── SegmentTooLargeError                 no         2   beyond the format's limits of 2^31
    ├── FencedError                          no         5   another member or process has taken over
    ├── BufferFullError                      yes        75  a producer's buffer is full: try again
    ├── DeliveryFailedError                  yes        75  records that were not stored in time
    ├── AlreadyClosedError                   no         1   used after it was closed, or closed while it was used
    ├── BrokerError                          no         6   the Kafka broker refused the request
    │   ├── BrokerDeniedError                no         6   refused credentials, or an untrusted certificate
    │   └── BrokerUnavailableError           yes        75  no answer in time, connection lost: try again
    ├── PartlyDoneError                      no         6   some items of a tool failed; the others are done
    ├── RegistryError                        no         6   the schema registry refused the request
    │   ├── RegistryDeniedError              no         6   refused credentials, or an untrusted certificate
    │   └── RegistryUnavailableError         yes        75  no answer in time, server trouble: try again
    └── StoreError                           no         6   the object store refused the request
        ├── ObjectArchivedError              no         6   in an archive class: restore the object first
        ├── RangeNotSatisfiableError         no         6
        ├── PreconditionFailedError          no         5   the condition (if_absent, or an etag) failed
        ├── InvalidKeyError                  no         2   a key that this store cannot hold
        ├── AccessDeniedError                no         6
        └── StoreUnavailableError            yes        75  timed out, connection lost, server trouble: try again
            └── StoreThrottledError          yes        75  the store asks for fewer requests: try again, later
"""

from __future__ import annotations

import re
from reprlib import Repr
from typing import ClassVar, Final, Self

LONGEST_SENTENCE: Final = 4000
"""The maximum number of characters in an error's message."""

_SHORT: Final = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60

_USER: Final = re.compile(r"//[^\s'\"]*@|\b[A-Za-z][\w+.-]*:[^\s'\"]*@")
"""Matches the user and password of a URL. The match begins at ``//``, or at the word before the first colon. It ends at
the last ``@``, and may contain slashes, because passwords may.
"""
_QUERY: Final = re.compile(r"\?[^\s'\")]+")
"""Matches the query of a URL, because it may contain a signature."""


def excerpt(foreign: object, most: int = 120) -> str:
    """Shorten a text from elsewhere (a manifest, a store, a broker, a setting) for a message.

    Of a text longer than ``most`` characters (at least 40), return the beginning, the end and the length.
    """
    text = str(foreign)
    if len(text) <= most:
        return text
    length = f" ({len(text)} characters)"
    room = most - len(length) - 1
    tail = room // 4
    return f"{text[: room - tail]}…{text[-tail:]}{length}"


def quote(foreign: object, most: int = 60) -> str:
    """Quote a value from elsewhere, shortened as by :func:`excerpt`.

    Of a large list or map, compute ``repr`` only for the part that the message shows.
    """
    if isinstance(foreign, bytes):
        foreign = foreign.decode("utf-8", "replace")
    return repr(excerpt(foreign, most)) if isinstance(foreign, str) else _SHORT.repr(foreign)


def redact(text: object) -> str:
    """Return ``text`` for a message, with ``…`` for the credentials and the queries of its URLs."""
    return _QUERY.sub("?…", _USER.sub(_hide, str(text)))


def _hide(match: re.Match[str]) -> str:
    return "//…@" if match[0].startswith("//") else f"{match[0].partition(':')[0]}:…@"


class TieredStoreError(Exception):
    """Root of all errors of this library.

    Example::

        try:
            bucket.topics("orders")
        except tieredstore.TieredStoreError as error:
            print(error, error.retryable, error.exit_code)
    """

    def __init__(self, *words: object) -> None:
        # This limit is a last resort, because callers have already shortened texts from elsewhere for readability.
        super().__init__(*(excerpt(word, LONGEST_SENTENCE) if isinstance(word, str) else word for word in words))

    retryable: ClassVar[bool] = False
    """True if the same call may succeed later without any change."""

    exit_code: ClassVar[int] = 1
    """The exit code of the command line for this class of errors."""


class ConfigError(TieredStoreError, ValueError):
    """A user's setting, file or argument is wrong. The message names it, and says what to do."""

    exit_code = 2


class NewerVersionError(ConfigError):
    """A later release of tieredstore wrote the object or file, so this release leaves it unchanged. Upgrade
    tieredstore."""


class EncryptionError(TieredStoreError):
    """The keys of encrypted data are missing, wrong, or held by a service that refuses them."""


class KeyRingError(EncryptionError, ConfigError):
    """A key file, key id or key size that the key ring cannot use."""

    exit_code = 2


class WrongKeyError(KeyRingError):
    """The key ring's key pair with the manifest's key id does not open the data key, so it is another pair.

    A damaged data key in a manifest causes the same error, because the format cannot distinguish the two cases. So the
    exit code is that of unreadable data.
    """

    exit_code = 4


class InvalidRangeError(TieredStoreError):
    """A byte range that has a negative start, or that starts after its end or after the end of the segment."""

    exit_code = 2


class InvalidSegmentError(TieredStoreError):
    """Local segment files that cannot be copied: a file is missing, or files contradict each other."""

    exit_code = 2


class SegmentConflictError(InvalidSegmentError):
    """A file with other bytes already has the segment's name, because the raw layout names segments only by partition
    and offset."""


class SegmentTooLargeError(TieredStoreError):
    """A segment over the format's signed 32-bit limits."""

    exit_code = 2


class ResourceNotFoundError(TieredStoreError):
    """The requested topic, segment or object is absent; it is neither damaged nor unreachable."""

    exit_code = 3


class TopicNotFoundError(ResourceNotFoundError):
    """No topic has this name."""


class SegmentNotFoundError(ResourceNotFoundError):
    """No manifest: the segment was never committed, or it was deleted."""


class IndexNotRecordedError(ResourceNotFoundError):
    """The segment was copied without this index (only the transaction index may be absent)."""


class ObjectNotFoundError(ResourceNotFoundError):
    """A key for which the store has no object."""


class PreparedGoneError(ResourceNotFoundError):
    """The bytes prepared for an object have disappeared from the store, and the object itself does not exist either."""


class SchemaNotFoundError(ResourceNotFoundError):
    """The schema registry has no schema of this id, or no subject of this name."""


class DataLossError(ResourceNotFoundError):
    """Requested offsets are in no segment, although later offsets exist.

    ``continue_at`` is the offset at which a reader goes on after a loss in a queue, if the queue knows it.
    """

    continue_at: int | None = None

    @classmethod
    def until(cls, continue_at: int, lost: str) -> Self:
        """Return the error of a reader that goes on at ``continue_at``."""
        error = cls(f"{lost}; continue at {continue_at}")
        error.continue_at = continue_at
        return error


class CorruptDataError(TieredStoreError):
    """Bytes exist, but differ from those written."""

    exit_code = 4


class ManifestCorruptError(CorruptDataError):
    """A manifest that cannot be parsed or contradicts itself."""


class SegmentCorruptError(CorruptDataError):
    """A ``.log`` object that is missing or short under a valid manifest, or a chunk that does not decode."""


class IndexesCorruptError(CorruptDataError):
    """An ``.indexes`` object that is missing or short under a valid manifest, or an index that does not decode."""


class BatchCorruptError(CorruptDataError):
    """Kafka's own bytes (a record batch, an index file, a checkpoint) are damaged."""


class CommitLogCorruptError(CorruptDataError):
    """The commit log of a pipeline has missing or changed entries."""


class UnknownKeyError(EncryptionError):
    """A data key wrapped by a key pair that is not on the key ring."""

    exit_code = 4


class InvalidValueError(TieredStoreError):
    """A message's key or value does not match its type (text, JSON of a schema, Avro). The bytes are intact."""

    exit_code = 4


class SegmentAlreadyExistsError(TieredStoreError):
    """A manifest with this segment id already exists, so nothing was written."""

    exit_code = 5


class FencedError(TieredStoreError):
    """Another member of the group, or another process of the pipeline, has taken over, so nothing was committed."""

    exit_code = 5


class AlreadyClosedError(TieredStoreError):
    """The object was closed before or during the call."""


class KeyServiceError(EncryptionError):
    """The key management service that sealed a private key refused a request, or did not carry it out."""

    exit_code = 6


class KeyServiceDeniedError(KeyServiceError):
    """The service does not accept the credentials, or the credentials do not permit using the key."""


class KeyServiceUnavailableError(KeyServiceError):
    """The service did not answer in time, or asks for fewer requests. The same call may succeed later."""

    retryable = True
    exit_code = 75


class BrokerError(TieredStoreError):
    """The Kafka broker refused or failed a request."""

    exit_code = 6


class BrokerDeniedError(BrokerError):
    """The broker refuses the credentials, or the credentials do not permit the request, or its certificate is not
    trusted.
    """


class BrokerUnavailableError(BrokerError):
    """The broker did not answer in time, or a partition currently has no leader. The same call may succeed later."""

    retryable = True
    exit_code = 75


class PartlyDoneError(TieredStoreError):
    """Some items of a tool failed, and the others are done: ``totals`` has the counts and the first failures."""

    exit_code = 6

    def __init__(self, sentence: str, totals: object = None) -> None:
        super().__init__(sentence)
        self.totals = totals


class RegistryError(TieredStoreError):
    """The schema registry refused or failed a request, or the server at its address is not a registry."""

    exit_code = 6


class RegistryDeniedError(RegistryError):
    """The registry refuses the credentials, or the credentials do not permit the request, or its certificate is not
    trusted.
    """


class RegistryUnavailableError(RegistryError):
    """The registry did not answer in time, or has a server error. The same call may succeed later."""

    retryable = True
    exit_code = 75


class StoreError(TieredStoreError):
    """The object store refused or failed an operation."""

    exit_code = 6


class ObjectArchivedError(StoreError):
    """The object is in an archive storage class, such as S3 Glacier, so nothing can read it before it is restored."""


class RangeNotSatisfiableError(StoreError):
    """A range that is not wholly inside the object."""


class PreconditionFailedError(StoreError):
    """The write required ``if_absent`` but the object exists, or it required an etag but the object has another one or
    is absent."""

    exit_code = 5


class InvalidKeyError(StoreError):
    """A key that this store cannot hold, or that would leave its root."""

    exit_code = 2


class AccessDeniedError(StoreError):
    """The credentials are not accepted, or do not allow this operation."""


class StoreUnavailableError(StoreError):
    """A transient failure: throttling, a timeout, a lost connection. The same call may succeed later."""

    retryable = True
    exit_code = 75


class StoreThrottledError(StoreUnavailableError):
    """The store asks for fewer requests (status 429, or 503 with a slow-down code)."""
