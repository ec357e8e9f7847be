"""Maintenance of topics of batches: retention, garbage, audits, costs."""
