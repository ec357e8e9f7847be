"""The golden buckets of a real broker and the real plugin: segments, our values of them, records, catalogs."""
