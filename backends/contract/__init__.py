"""The treatment of arguments that all stores share: keys, ranges, bodies, URLs, the outcome of a delete."""
