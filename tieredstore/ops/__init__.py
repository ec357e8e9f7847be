"""An operator's tools for a bucket. Each plans and acts; the command line words and tabulates the results."""
