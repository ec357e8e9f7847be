"""Consumers and tables: a topic's records, by its queue."""
