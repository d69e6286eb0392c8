"""What accuracies are read beside."""

from dpft.tasks.metrics.baseline import MOST_CLASSES, cautions, confused, majority

TRUE = ["yes", "yes", "no", "yes", "no"]


def test_the_most_frequent_class_is_counted_by_hand():
    assert majority(TRUE) == 3 / 5


def test_confusion_counts_every_pair_once():
    answered = ["yes", "no", "no", "yes", "yes"]
    counts = confused(answered, TRUE, ("no", "yes", "unseen"))
    assert counts["confusion"] == {"no": {"no": 1, "yes": 1}, "yes": {"no": 1, "yes": 2}}


def test_a_table_of_many_classes_is_left_out():
    assert confused(TRUE, TRUE, [f"{n}" for n in range(MOST_CLASSES + 1)]) == {}


def test_a_constant_and_a_score_below_it_are_told():
    scored = {
        "metrics": {"accuracy": 0.6}, "examples": 5, "distinct": 1,
        "baselines": {"accuracy": 0.6}, "confusion": {"yes": {"yes": 3}, "no": {"yes": 2}},
    }  # fmt: skip
    same, no_better = cautions(scored)
    assert same == "all 5 answers are the same, 'yes': nothing was learned"
    assert no_better.startswith("accuracy 0.6000 is no better than always answering")
    assert cautions({**scored, "metrics": {"accuracy": 0.61}, "distinct": 2}) == []


def test_one_answer_to_records_of_one_class_says_nothing_of_what_was_learned():
    scored = {
        "metrics": {"accuracy": 1.0}, "examples": 5, "distinct": 1,
        "baselines": {"accuracy": 1.0}, "confusion": {"yes": {"yes": 5}},
    }  # fmt: skip
    (no_better,) = cautions(scored)
    assert no_better.startswith("accuracy 1.0000 is no better than always answering")


def test_scores_from_before_there_were_baselines_say_nothing():
    assert cautions({"metrics": {"accuracy": 0.1}, "examples": 5}) == []
