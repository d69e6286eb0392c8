"""Official scores, equal to the published scorers: ``e2e``, ``gem`` (DART), ``scorers`` (others).

``coco`` and ``java`` are their parts; ``shown`` says how recorded scores are shown.
Nothing is imported here, so that asking for one score does not load the libraries of the others.
"""
