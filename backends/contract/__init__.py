"""What every store does with the contract's arguments: keys, ranges, bodies, URLs, the outcome of a delete."""
