"""Amazon S3 and compatible stores. Importing this package does not import the SDK."""
