"""What long-running parts share: fork safety, parallel maps, deadlines and retries."""
