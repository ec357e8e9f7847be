"""Consumers and tables: read a topic's records in the order of its queue."""
