"""Several processes that train one model: what they share, and what they add up.

`dpft.privacy` sees a `Cohort` and no more of it: the same clipper, noise and mechanism run in one
process and in many.
"""
