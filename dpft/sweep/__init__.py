"""Sweeps: many runs from one command, which survive kills because each of their runs does.

Hydra's multirun makes the runs, in a process of its own, so every sweeper and launcher of Hydra
works. Around it: `words` reads what was typed, `points` expands and checks it, `child` starts and
ends Hydra's process, `job` is what Hydra calls for each point, `journal` is what the jobs write
down, `state` reads how far they are, `table` shows it, and `cost` says what choosing among private
runs costs. ``docs/sweeps.md`` tells how to use them.
"""
