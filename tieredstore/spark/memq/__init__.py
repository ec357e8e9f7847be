"""Topics of batches in Spark: ``spark.read.format("memq")``, and queries that write to a topic."""
