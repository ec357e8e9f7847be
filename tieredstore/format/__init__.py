"""The stored bytes and their meaning: object keys, chunk index, manifest, custom metadata. Pure functions and
values.
"""
