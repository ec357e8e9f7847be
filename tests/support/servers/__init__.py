"""Real object-store servers on the loopback interface, started when a test first needs them."""
