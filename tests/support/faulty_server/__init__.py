"""Misbehaving stores: an HTTP server that speaks enough S3, Google Cloud Storage or Azure, and a table of faults.

``FaultyServer(S3Service())`` is honest until ``lie`` gives it ways of the table ``WAYS``, or custom ways. A way answers
with any bytes, at any pace. The server is for tests, and checks no credentials.
"""
