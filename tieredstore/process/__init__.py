"""Basics of long-running parts: fork safety, parallel work, deadlines, retries and services."""
