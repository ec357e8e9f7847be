"""Stores that lie: an HTTP server that speaks enough S3, Google Cloud Storage or Azure, and a table of ways to lie.

``FaultyServer(S3Service())`` is honest until ``lie`` tells it one or more ways of the table ``WAYS``, or ways of one's
own: an answer may be any bytes, at any pace. It is for tests; it looks at no credentials.
"""
