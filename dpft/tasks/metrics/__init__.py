"""Official scores, equal to the published scorers: ``e2e``, ``gem`` (DART), ``scorers`` (others).

``coco`` is a part of the first two. Nothing is imported here, so that asking for one score does not
load the libraries of the others.
"""
