"""A pipeline at work: it plans, writes, commits, publishes and finalizes."""
