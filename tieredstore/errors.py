"""The error tree. Every error of the library derives from :class:`TieredStoreError`.

Errors carry policy as class attributes, so that a caller decides by attribute and never by matching text::

    TieredStoreError                      retryable  exit_code
    ├── ConfigError                       no         2   a user's setting or argument is wrong
    │   └── KeyRingError                  no         2   key files or key ids that cannot be used
    │       └── WrongKey                  no         2   a pair of the right id that does not open a data key
    ├── InvalidRange                      no         2   a byte range outside of what was asked for
    ├── InvalidSegment                    no         2   local segment files that cannot be copied
    │   └── SegmentConflict               no         2   another segment lies under its name, in the raw layout
    ├── InvalidRecord                     no         2   a record that MemQ's format cannot hold
    ├── ResourceNotFound                  no         3   absent: nothing was ever there, or it was deleted
    │   ├── SegmentNotFound               no         3   no committed segment (no manifest)
    │   ├── IndexNotRecorded              no         3   the segment was copied without this index
    │   ├── ObjectNotFound                no         3   one key of the store
    │   ├── PreparedGone                  no         3   bytes that were prepared for an object, and are gone
    │   ├── TopicNotFound                 no         3   no topic of batches of this name
    │   ├── SchemaNotFound                no         3   no schema of this id or subject in the registry
    │   └── DataLoss                      no         3   offsets that no segment holds, though later ones are there
    ├── CorruptData                       no         4   bytes are there and wrong
    │   ├── ManifestCorrupt               no         4
    │   ├── SegmentCorrupt                no         4   the .log object: missing, short, or not what was written
    │   ├── IndexesCorrupt                no         4   the .indexes object: missing, short, or not what was written
    │   ├── BatchCorrupt                  no         4   Kafka's own bytes: record batches, index files, checkpoints
    │   ├── CommitLogCorrupt              no         4   what says which files a pipeline has written
    │   ├── MessageCorrupt                no         4   MemQ's batches: an object's index, a Message, its records
    │   ├── NotificationCorrupt           no         4   what a notification queue holds does not point to a batch
    │   └── PacketCorrupt                 no         4   what came over a connection is no packet of MemQ's
    ├── UnknownKey                        no         4   data wrapped by a key that is not on the ring
    ├── InvalidValue                      no         4   a message's key or value that is not what it is read as
    ├── SegmentAlreadyExists              no         5   a manifest stands already under this segment id
    ├── SegmentTooLarge                   no         2   over the format's 2^31 limits
    ├── Fenced                            no         5   a group's partition that another member has by now
    ├── BufferFull                        yes        75  a producer holds all that it may: try again
    ├── DeliveryFailed                    yes        75  records that were not stored in time
    ├── AlreadyClosed                     no         1   used after it was closed, or closed while it was used
    ├── BrokerError                       no         6   the Kafka broker said no
    │   ├── BrokerDenied                  no         6   credentials or a certificate that the broker or we refuse
    │   └── BrokerUnavailable             yes        75  no answer in time, connection lost: try again
    ├── PartlyDoneError                   no         6   some items of a tool failed; the others are done
    ├── RegistryError                     no         6   the schema registry said no
    │   ├── RegistryDenied                no         6   credentials or a certificate that the registry or we refuse
    │   └── RegistryUnavailable           yes        75  no answer in time, server trouble: try again
    └── StoreError                        no         6   the object store said no
        ├── RangeNotSatisfiable           no         6
        ├── PreconditionFailed            no         5   if_absent or an etag did not hold
        ├── InvalidKey                    no         2   a key that this store cannot hold
        ├── AccessDenied                  no         6
        └── StoreUnavailable              yes        75  timed out, connection lost, server trouble: try again
            └── StoreThrottled            yes        75  the store asks for fewer requests: try again, later
"""

from __future__ import annotations

from reprlib import Repr
from typing import ClassVar, Final

LONGEST_SENTENCE: Final = 4000
"""Characters that an error's sentence has at most, whatever went into it."""

_SHORT: Final = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def excerpt(foreign: object, most: int = 120) -> str:
    """A text of others (a manifest's, a store's, a broker's, a setting's) as a message shows it.

    Of one that is longer than ``most`` characters (40 or more) its beginning, its end and how long it is: so many.
    """
    text = str(foreign)
    if len(text) <= most:
        return text
    length = f" ({len(text)} characters)"
    room = most - len(length) - 1
    tail = room // 4
    return f"{text[: room - tail]}…{text[-tail:]}{length}"


def quoted(foreign: object, most: int = 60) -> str:
    """A value of others in quotes, cut as :func:`excerpt` cuts; of what is neither text nor bytes so much of its
    ``repr`` as is shown is made, however much is in it."""
    if isinstance(foreign, bytes):
        foreign = foreign.decode("utf-8", "replace")
    return repr(excerpt(foreign, most)) if isinstance(foreign, str) else _SHORT.repr(foreign)


class TieredStoreError(Exception):
    """Root of all errors of this library."""

    def __init__(self, *words: object) -> None:
        # Whoever makes a sentence cuts what others wrote, so that it reads well. Here none is ever endless.
        super().__init__(*(excerpt(word, LONGEST_SENTENCE) if isinstance(word, str) else word for word in words))

    retryable: ClassVar[bool] = False
    """True when the same call may succeed later without anybody changing anything."""

    exit_code: ClassVar[int] = 1
    """The exit code of the command line for this class of errors."""


class ConfigError(TieredStoreError, ValueError):
    """A user's setting, file or argument is wrong; the sentence names it and the way out."""

    exit_code = 2


class KeyRingError(ConfigError):
    """A key file, key id or key size that the key ring cannot use."""


class WrongKey(KeyRingError):
    """The pair that a manifest names is on the ring and does not open the data key: it is another pair of that id.

    A damaged data key in a manifest looks the same: nothing in the format tells the two apart. Hence the exit code of
    what cannot be read.
    """

    exit_code = 4


class InvalidRange(TieredStoreError):
    """A byte range with a negative start, or that starts past its end or past the segment."""

    exit_code = 2


class InvalidSegment(TieredStoreError):
    """Local segment files that cannot be copied: one is missing, or they contradict each other."""

    exit_code = 2


class SegmentConflict(InvalidSegment):
    """The raw layout has one name for a segment, and a file with other bytes has it."""


class SegmentTooLarge(TieredStoreError):
    """A segment over the format's signed 32-bit limits."""

    exit_code = 2


class ResourceNotFound(TieredStoreError):
    """What was asked for is absent (and not damaged, and not out of reach)."""

    exit_code = 3


class SegmentNotFound(ResourceNotFound):
    """No manifest: the segment was never committed, or it was deleted."""


class IndexNotRecorded(ResourceNotFound):
    """The segment was copied without this index (only the transaction index may be absent)."""


class ObjectNotFound(ResourceNotFound):
    """A key that the store does not hold."""


class PreparedGone(ResourceNotFound):
    """What was prepared to become an object is no more in the store, and nothing has the object's key."""


class SchemaNotFound(ResourceNotFound):
    """The schema registry has no schema of this id, or no subject of this name."""


class DataLoss(ResourceNotFound):
    """Offsets that were asked for and that no segment holds, though later ones are there."""


class CorruptData(TieredStoreError):
    """Bytes are there, and they are not what was written."""

    exit_code = 4


class ManifestCorrupt(CorruptData):
    """A manifest that cannot be parsed or contradicts itself."""


class SegmentCorrupt(CorruptData):
    """A ``.log`` object that is missing or short under a valid manifest, or a chunk that does not decode."""


class IndexesCorrupt(CorruptData):
    """An ``.indexes`` object that is missing or short under a valid manifest, or an index that does not decode."""


class BatchCorrupt(CorruptData):
    """Kafka's own bytes (a record batch, an index file, a checkpoint) do not hold together."""


class CommitLogCorrupt(CorruptData):
    """The commit log of a pipeline has entries that are missing, or are not what was written."""


class UnknownKey(TieredStoreError):
    """A data key wrapped by a key pair that is not on the key ring."""

    exit_code = 4


class InvalidValue(TieredStoreError):
    """A message's key or value is not what it is to be read as: text, JSON of a schema, Avro. Its bytes are whole."""

    exit_code = 4


class SegmentAlreadyExists(TieredStoreError):
    """A manifest stands already under this segment id; nothing was written."""

    exit_code = 5


class Fenced(TieredStoreError):
    """Another one has taken over, a member of the group or a process of the pipeline: nothing was committed."""

    exit_code = 5


class AlreadyClosed(TieredStoreError):
    """What is asked was closed before, or while it was asked: a manager, a tail, the threads that did the work."""


class KeyServiceError(TieredStoreError):
    """The key management service that has sealed a private key refused or failed a request."""

    exit_code = 6


class KeyServiceDenied(KeyServiceError):
    """The service does not accept the credentials, or they do not allow to use the key."""


class KeyServiceUnavailable(KeyServiceError):
    """The service did not answer in time, or asks for fewer requests. The same call may succeed later."""

    retryable = True
    exit_code = 75


class BrokerError(TieredStoreError):
    """The Kafka broker refused or failed a request."""

    exit_code = 6


class BrokerDenied(BrokerError):
    """The broker does not accept the credentials, or they do not allow this, or its certificate is not trusted."""


class BrokerUnavailable(BrokerError):
    """The broker did not answer in time, or has no leader for a partition now. The same call may succeed later."""

    retryable = True
    exit_code = 75


class PartlyDoneError(TieredStoreError):
    """Some items of a tool failed, and the others are done: ``totals`` says how many, and which failed first."""

    exit_code = 6

    def __init__(self, sentence: str, totals: object = None) -> None:
        super().__init__(sentence)
        self.totals = totals


class RegistryError(TieredStoreError):
    """The schema registry refused or failed a request, or what is at its address is none."""

    exit_code = 6


class RegistryDenied(RegistryError):
    """The registry does not accept the credentials, or they do not allow this, or its certificate is not trusted."""


class RegistryUnavailable(RegistryError):
    """The registry did not answer in time, or has trouble of its own. The same call may succeed later."""

    retryable = True
    exit_code = 75


class StoreError(TieredStoreError):
    """The object store refused or failed an operation."""

    exit_code = 6


class RangeNotSatisfiable(StoreError):
    """A range that does not lie wholly inside the object."""


class PreconditionFailed(StoreError):
    """``if_absent`` found an object, or the etag was another one (or the object is gone)."""

    exit_code = 5


class InvalidKey(StoreError):
    """A key that this store cannot hold, or that would leave its root."""

    exit_code = 2


class AccessDenied(StoreError):
    """The credentials are not accepted, or do not allow this operation."""


class StoreUnavailable(StoreError):
    """A passing failure: throttling, a time-out, a lost connection. The same call may succeed later."""

    retryable = True
    exit_code = 75


class StoreThrottled(StoreUnavailable):
    """The store asks for fewer requests (status 429, or 503 with a slow-down code)."""
