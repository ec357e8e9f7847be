"""MemQ's bytes: batches, Messages, records, keys and notifications; bytes in, bytes out, no store.

What they mean is in docs/reference/batch-format.md. Decoding needs ``tieredstore[arrow]``.
"""
