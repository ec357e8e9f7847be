"""Commands about what a bucket holds and what is done to it."""
