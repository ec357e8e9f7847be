"""The uploader's command."""
