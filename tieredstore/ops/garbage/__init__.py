"""Deletion of segments and of the remains of broken copies, and the legal holds that prevent deletion."""
