"""Producers and sinks: they pack records into Messages and batches, and store the batches or send the Messages to
brokers."""
