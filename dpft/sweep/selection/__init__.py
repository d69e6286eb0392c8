"""Private selection: the best of a random number of private runs, at little more than one's price.

Papernot & Steinke (2022, arXiv:2110.03620). Their theorem asks that the number of runs is drawn
once, from a secret key, and stays secret; that each run draws its settings at random from the
candidates, and separate noise; and that only the best is released.
"""
