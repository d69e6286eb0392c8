"""Checks that what is clipped is all there is, and that the rules are right."""
