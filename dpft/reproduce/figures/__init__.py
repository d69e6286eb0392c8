"""The papers' figures: computed, or measured by recorded runs and ``dpft bench``.

`registry` names every figure; builders turn what is at hand into a `content.Content`, which `draw`
draws and `files` writes as PNG, SVG and CSV. ``docs/how-to/figures.md`` says what each one needs.
"""
