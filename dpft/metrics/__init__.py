"""Official scores, one module per pipeline, equal to the published scorers.

- `dpft.metrics.e2e`: BLEU, NIST, METEOR, ROUGE-L and CIDEr of the E2E NLG challenge.

Below it lie the parts that another pipeline may share: `nist` (mteval tokens, NIST), `coco` (PTB
tokens, METEOR, ROUGE-L, CIDEr) and `java` (finds and runs a Java). Nothing is imported here, so
that asking for one score does not load the libraries of the others.
"""
