"""Building blocks of long-running processes: fork safety, parallel work, deadlines, retries and services."""
