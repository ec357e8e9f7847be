"""``verify``: finds damaged, missing and unusual objects in a bucket, and says what they mean for readers."""
