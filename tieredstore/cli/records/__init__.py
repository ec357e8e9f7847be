"""Commands that show records."""
