"""Tiered storage for Kafka's log, without the broker.

The public names are those of the rooms below; the usual ones to start from are
:class:`tieredstore.remote.RemoteStorageManager` and :func:`tieredstore.config.load_settings`.
"""
