"""Azure Blob Storage. Importing this package does not import the SDK."""
