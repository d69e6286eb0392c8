"""Checks that what is clipped is all there is, and that the layer rules are right."""
