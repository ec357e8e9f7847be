"""Queues of notifications, topics and groups, shared by writers and readers."""
