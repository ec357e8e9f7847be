"""MemQ's format of batches, Messages, records, keys and notifications. These modules work on bytes, and use no store.

docs/reference/batch-format.md describes it. Decoding needs ``tieredstore[arrow]``.
"""
