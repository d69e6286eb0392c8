"""What several private runs cost together."""

import pytest

from dpft.privacy.accounting import run_curve
from dpft.privacy.rounding import up
from dpft.report.cost import composed, remarks
from dpft.runs.ledger import LedgerContents, key_fingerprint, key_from_seed
from tests.report.pages.example import DELTA, epsilon, mechanism
from tests.report.pages.example import record as whole
from tests.runs.example import example_guarantee, without_privacy


def record(task="e2e", sigma=2.0, rate=0.1, steps=50, sampling="poisson"):
    stated = mechanism(
        sampling_rate=rate, noise_multiplier=sigma, steps=steps, delta=DELTA, sampling=sampling
    )
    each = epsilon(steps, stated)
    privacy = example_guarantee(
        unit="a row",
        delta=DELTA,
        epsilon={"rdp": each},
        stated=each,
        kind="private" if steps else "nothing released",
        voided_by=["shuffled"] if sampling == "shuffle" else [],
    )
    dataset = {"task": task, "source": "files"}
    return whole(mechanism=stated, privacy=privacy, training={"steps": steps}, dataset=dataset)


def drawn(seed, **settings):
    return record(**settings) | {"seeds": {"seed": 0, "noise": seed}}


def chosen():
    """A selection that costs as much as four such runs."""
    found = record(sigma=0.8, rate=0.02, steps=400)
    curve = run_curve(sampling_rate=0.02, noise_multiplier=0.8, steps=1600)
    found["privacy"] |= {"epsilon": {"rdp": 8.51}, "stated": 8.51}
    return found | {"selection": {"orders": curve.orders.tolist(), "rdp": curve.rdp.tolist()}}


def begun(taken=20, spent=1.5, seed=None, stretches=(), **settings):
    """The ledger of a run that took so many of its steps."""
    key = "of a secret" if seed is None else key_fingerprint(key_from_seed(seed))
    header = {"mechanism": record(**settings)["mechanism"], "key": key}
    lines = [{"step": step, "epsilon_rdp": spent} for step in range(taken)]
    return LedgerContents(header, lines, list(stretches))


def test_noisy_counts_and_repeated_steps_are_part_of_it():
    adaptive, again = record(), record()
    adaptive["mechanism"] |= {"total_noise_multiplier": 2.0, "noise_multiplier": 2.5}
    assert composed([adaptive]) == composed([record()])
    again["mechanism"]["repeated"] = 7
    assert composed([again]) == composed([record(steps=57)])


def test_a_remark_for_each_data_set_of_several_private_runs():
    public = record() | {"mechanism": None, "privacy": without_privacy()}
    untrained = record(steps=0)
    assert remarks([record(), public, untrained, record(task="sst2")]) == []
    said = remarks([record(), record(), record(task="sst2")])
    assert len(said) == 1
    assert said[0].startswith("2 runs were trained with privacy on e2e.")
    assert "run with shuffled batches" not in said[0]
    total = record(steps=100)["privacy"]["stated"]
    assert f"epsilon {total + 0.0005:.3f}"[:-1] in said[0]
    assert "run with shuffled batches" in remarks([record(sampling="shuffle"), record()])[0]


def test_what_may_be_on_the_same_records_is_added_up_or_named():
    """Tasks on own files may read the same one, and DART holds records of E2E."""
    both = [record(task="text2text"), record(task="mine")]
    said, apart = remarks([*both, record()])
    assert "(those on text2text and mine; those on e2e): their data may overlap" in apart
    assert said.startswith("2 runs were trained with privacy on text2text and mine.")
    assert f"epsilon {composed(both)[0] + 0.0005:.3f}"[:-1] in said
    assert "No total is stated" in remarks([record(task="dart"), record(task="e2e")])[0]
    assert remarks([record(task="e2e"), record(task="sst2")]) == []


def test_no_total_holds_where_an_audit_refuted_a_run_and_none_over_different_units():
    bad, users = record(), record()
    bad["privacy"]["voided_by"] = ["refuted"]
    (said,) = remarks([record(), bad])
    assert "An audit refutes the guarantee of 1 of them" in said
    assert "costs up to" not in said
    users["privacy"]["noun"] = "user"
    assert remarks([record(), users]) == []
    assert "for each user" in remarks([users, users])[0]


def test_a_chosen_run_costs_its_whole_selection():
    plain = record(sigma=0.8, rate=0.02, steps=400)
    assert composed([plain, plain])[0] == pytest.approx(6.52, abs=0.01)
    assert composed([chosen()])[0] == pytest.approx(composed([plain] * 4)[0], rel=1e-12)
    assert composed([plain, chosen()])[0] == pytest.approx(composed([plain] * 5)[0], rel=1e-12)
    (said,) = remarks([plain, chosen()])
    assert "dpft sweep --select chose, the whole selection is counted" in said
    assert "dpft sweep --select chose" not in remarks([plain, plain])[0]


def test_no_total_holds_where_runs_share_their_noise():
    (said,) = remarks([drawn(1), drawn(1, sigma=3.0), drawn(None)])
    assert "no total holds" in said
    assert "costs up to" not in said
    apart = remarks([drawn(1), drawn(2), drawn(None)])[0]
    assert "costs up to" in apart
    assert "The noise of 2 follows from explicit seeds" in apart
    assert "explicit seed" not in remarks([drawn(None), record()])[0]


def test_an_unfinished_run_adds_the_epsilon_of_all_planned_steps():
    """How many it took may follow from what they released, so theirs alone is no bound."""
    whole = record()["privacy"]["stated"]
    (said,) = remarks([], unfinished={"optim.lr=9": begun(), "optim.lr=8": None})
    assert f"by RDP: optim.lr=9: epsilon {up(whole)} at delta 1e-05 (1.500 so far); " in said
    assert "; optim.lr=8: epsilon no finite number. The smaller" in said
    assert "only if the run was stopped for a reason that does not depend on the records" in said
    assert "run with shuffled batches" not in said
    (said,) = remarks([], unfinished={"a": begun(sampling="shuffle")})
    assert said.endswith("run with shuffled batches.")
