"""Sweeps: many runs from one command, which survive kills because each of their runs does.

Hydra's multirun makes the runs in a separate process, so that every launcher of Hydra works:
`points` reads, expands and checks what was typed, `process` starts and ends Hydra's process, `job`
is what Hydra calls for each point, `sweep_folder` holds what was asked and which runs failed,
`state` reads and shows how far the runs are. `selection` chooses among private runs at a known
price.
"""
