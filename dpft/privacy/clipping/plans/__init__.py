"""How sums of clipped gradients are formed."""
