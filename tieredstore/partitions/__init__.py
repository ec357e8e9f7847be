"""The log of one partition as a reader sees it: the bucket's and the broker's part in one. All functions are pure."""
