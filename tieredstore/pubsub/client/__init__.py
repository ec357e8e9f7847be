"""Who speaks to brokers, ours or MemQ's: a producer that finds them, changes between them, and sends again."""
