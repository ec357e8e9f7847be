"""What is done to an output besides writing it: backfills, dropping, verification."""
