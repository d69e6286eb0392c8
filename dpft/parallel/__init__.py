"""Several processes that train one model; `dpft.privacy` sees them as a `Cohort`."""
