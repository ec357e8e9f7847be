"""Deletion of segments and of leftovers of broken copies; and the holds against it."""
