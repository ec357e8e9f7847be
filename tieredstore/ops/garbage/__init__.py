"""Deletes segments and what broken copies left, and keeps the legal holds that prevent it."""
