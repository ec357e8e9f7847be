"""What an operator asks of a topic of batches: retention, garbage, audits, costs."""
