"""MemQ's bytes: batches, Messages, records, keys and notifications; bytes in, bytes out, no store.

What they mean is in docs/pubsub-format.md. Decoding needs ``tieredstore[arrow]``.
"""
