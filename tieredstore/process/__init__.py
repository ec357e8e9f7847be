"""What long-running parts share: fork safety, work in parallel, deadlines and retries, the life of a service."""
