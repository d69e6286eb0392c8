"""Official scores, one module per pipeline, equal to the published scorers.

- `dpft.tasks.metrics.e2e`: BLEU, NIST, METEOR, ROUGE-L and CIDEr of the E2E NLG challenge.
- `dpft.tasks.metrics.gem`: DART's BLEU, METEOR, ROUGE, and with their weights BERTScore, BLEURT.
- `dpft.tasks.metrics.parlai`: word F1 of Persona-Chat, as ParlAI and ConvAI2 compute it.
- `dpft.tasks.metrics.rouge`: ROUGE of SAMSum.
- `dpft.tasks.metrics.classification`: accuracy and F1 of GLUE and of images.
- `dpft.tasks.metrics.perplexity`: per token, from likelihoods that predictions carry.

Below them lie the parts that pipelines share: `nist` (mteval tokens, NIST), `coco` (PTB
tokens, METEOR, ROUGE-L, CIDEr), `neural` (BERTScore, BLEURT), `java` (finds and runs a Java) and
`inputs` (refuses what cannot be scored). Nothing is imported here, so that asking for one score
does not load the libraries of the others.
"""
