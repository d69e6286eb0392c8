"""The papers' figures: computed, or measured by recorded runs and ``dpft bench``.

`catalog` has every figure as ``data/figures.yaml`` describes it; `build` turns its `inputs` into a
`content.Content`, which `draw` writes as PNG, SVG and CSV. See ``docs/how-to/tables.md``.
"""
