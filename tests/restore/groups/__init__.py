"""Consumer groups that move to a restored topic."""
