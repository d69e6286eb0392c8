"""Audits: what a run gives away, measured from outside and held against what it guarantees.

`bound` turns guesses about canaries into a lower bound on epsilon, `gradients` and `records` are
two kinds of canaries for it, `exposure` asks whether secrets in the training data can be recognised
(Li et al. 2022, appendix M). ``docs/how-to/audit.md`` says what each can show and what it cannot.
"""
