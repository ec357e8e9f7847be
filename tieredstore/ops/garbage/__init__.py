"""What is deleted: segments, leftovers of broken copies; and the holds against it."""
