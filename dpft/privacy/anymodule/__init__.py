"""Clipping of any module without a layer rule: it is computed again, for each record by itself."""
