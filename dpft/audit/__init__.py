"""Audits: what a run gives away, measured from outside and compared with what it guarantees."""
