"""Misbehaving stores: an HTTP server that speaks enough S3, Google Cloud Storage or Azure, and a table of faults.

``FaultyServer(S3Service())`` answers correctly until ``lie`` gives it faults (class ``Way``), from the table ``WAYS``
or others. Such a fault may answer with any bytes, at any pace. The server is for tests, and checks no credentials.
"""
