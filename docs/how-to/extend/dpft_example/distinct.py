"""A metric: how many of the words in a model's answers are different ones."""

from collections.abc import Mapping, Sequence

from dpft.tasks.objectives.base import Prediction


class Distinct:
    """Different words over all words, of all answers together."""

    signature = "distinct:words between blanks, lowercased"

    @staticmethod
    def score(predictions: Sequence[Prediction]) -> Mapping[str, float | None]:
        words = [word.lower() for one in predictions for word in one.prediction.split()]
        return {"distinct_words": len(set(words)) / len(words) if words else None}
