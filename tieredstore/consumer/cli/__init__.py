"""The consumer's command."""
