"""What a bucket holds and costs."""
