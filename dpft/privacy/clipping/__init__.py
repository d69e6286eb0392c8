"""Per-example clipping: the clipper, its styles, plans, layer rules and checks."""
