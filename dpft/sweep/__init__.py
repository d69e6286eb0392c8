"""Sweeps: many runs from one command, which survive kills because each of their runs does.

Hydra's multirun makes the runs, in a process of its own, so every sweeper and launcher of Hydra
works. Around it: `arguments` reads what was typed, `points` expands and checks it, `process` starts
and ends Hydra's process, `job` is what Hydra calls for each point, `journal` is what the jobs write
down, `state` reads how far they are, and `table` shows it. `selection` and `release` choose among
private runs at a known price. ``docs/how-to/sweeps.md`` tells how to use them.
"""
