"""Queues of notifications, topics and groups: what is shared by writers and readers."""
