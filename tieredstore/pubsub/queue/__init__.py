"""Topics of batches, their queues of notifications, and groups of consumers; writers and readers use these modules."""
