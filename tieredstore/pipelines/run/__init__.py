"""Running a pipeline: planning, writing, committing, publishing and finalizing."""
