"""Human ratings of several runs' texts: a blinded sheet, and means with intervals.

The design is that of Li et al. 2022, Table 3 and appendix K: raters see a context and, in shuffled
order, every system's reply to it beside the human one, and rate each from 1 to 5.
"""

from dpft.reproduce.study.design import REFERENCE, Item, Study, System, design
from dpft.reproduce.study.ratings import Rating, Ratings, read_ratings
from dpft.reproduce.study.sheet import Key, read_key, write_study
from dpft.reproduce.study.statistics import RatingSummary, summarise

__all__ = [
    "REFERENCE",
    "Item",
    "Key",
    "Rating",
    "RatingSummary",
    "Ratings",
    "Study",
    "System",
    "design",
    "read_key",
    "read_ratings",
    "summarise",
    "write_study",
]
