"""Google Cloud Storage. Importing this package does not import the SDK."""
