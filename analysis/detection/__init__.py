"""Detection: references, slow intervals, and the causes that stragglers have."""
