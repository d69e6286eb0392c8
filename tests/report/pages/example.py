"""Run directories written by hand, with numbers in private/ that stand nowhere else."""

import copy
import html.parser
import json

from dpft.privacy.accounting import epsilon_rdp, run_curve
from dpft.runs.ledger import chained_lines
from tests.runs.example import example_guarantee, without_privacy

DELTA = 1e-5
LOSSES = [6.4336037, 5.5241913, 5.1730656, 4.9876543]
NORMS = [18.1442928, 16.396041, 15.129548, 14.77123]


def config(**changes):
    """The settings of a run; ``optim__lr=1`` changes one of a group."""
    found = {
        "task": {"name": "e2e", "source": "auto", "data_dir": "/home/me/secret/e2e"},
        "model": {"name": "tiny", "path": "bundled:tiny", "init": "pretrained"},
        "adapt": {"name": "full"},
        "clip": {"plan": "ghost", "groups": "flat", "threshold": 0.1},
        "privacy": {"epsilon": 3, "delta": None, "noise_seed": None, "sampling": "poisson"},
        "optim": {"name": "adam", "lr": 0.004, "epochs": 10, "batch_size": 1024},
        "decode": {"beams": 5, "split": "test"},
        "eps": 3,
        "seed": 0,
    }
    for key, value in changes.items():
        group, _, name = key.partition("__")
        found[group] = {**found[group], name: value} if name else value
    return found


def mechanism(**changes):
    return {
        "batch_size": 1024,
        "dataset_size": 42061,
        "delta": DELTA,
        "noise_multiplier": 0.71028,
        "private": True,
        "sampling": "poisson",
        "sampling_rate": 0.0243,
        "steps": 4,
        "thresholds": [0.1],
        **changes,
    }


def epsilon(steps, stated=None):
    """By Renyi accounting, of so many steps of a mechanism; 2.9998 of all four of the usual one."""
    stated = stated or mechanism()
    sigma = stated.get("total_noise_multiplier", stated["noise_multiplier"])
    spent = {"sampling_rate": stated["sampling_rate"], "noise_multiplier": sigma}
    return epsilon_rdp(**spent, steps=steps, delta=stated["delta"])


PRIVACY = example_guarantee(
    unit="one row of the training file",
    delta=DELTA,
    epsilon={
        "rdp": epsilon(4),
        "gdp_clt": 2.32,
        "prv": {"lower": 2.6, "estimate": 2.65, "upper": 2.7},
    },
    stated=2.9998,
    steps_taken=4,
    statement="(3, 1e-05)-differential privacy by Renyi accounting",
    caveats=["only 42 records"],
)


def record(bleu=0.59, private=True, settings=None, **changes):
    model = {"base_model": "bundled:tiny", "parameters": 757248, "trainable_parameters": 757248}
    metrics = {"BLEU": bleu, "NIST": None}
    return {
        "schema_version": 2,
        "stage": "scored",
        "dpft": {"version": "0.1.0", "commit": "abc123", "dirty": True},
        "config": settings or config(),
        "config_hash": "289919ffa4e6",
        "environment": {
            "cpu": "A Processor",
            "cores": 2,
            "packages": {"torch": "2.13.0"},
            "python": "3.11.7",
            "ram_bytes": 2**34,
        },
        "seeds": {"seed": 0, "noise": None},
        "dataset": {
            "task": "e2e",
            "source": "files",
            "fingerprint": "484b02cba9a223a2",
            "counts": {"train": 42061},
        },
        "model": model,
        "mechanism": mechanism() if private else None,
        "privacy": copy.deepcopy(PRIVACY) if private else without_privacy(),
        "training": {"steps": 4, "seconds": 61.4, "peak_memory_bytes": 2**30, "device": "cpu"},
        "scores": {"test": {"metrics": metrics, "examples": 630, "signature": "bleu|x"}},
        "flags": [{"flag": "bundled_model", "name": "tiny"}],
        **changes,
    }


def ledger(path, steps=4, **header):
    """Write a ledger, whose epsilons are those of the header's mechanism."""
    head = {"mechanism": mechanism(), "unit": "one row", "key": "k3y", **header}
    spent = [epsilon(step + 1, head["mechanism"]) for step in range(steps)]
    lines = [{"step": step, "epsilon_rdp": one} for step, one in enumerate(spent)]
    path.mkdir(parents=True, exist_ok=True)
    (path / "ledger.jsonl").write_bytes(chained_lines(head, lines))


def write_lines(file, lines):
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def a_run(path, the_record=None, **of_ledger):
    """A finished run with everything that a run leaves but its model."""
    path.mkdir(parents=True, exist_ok=True)
    the_record = the_record or record()
    (path / "record.json").write_text(json.dumps(the_record))
    identity = {"config": the_record["config"], "config_hash": the_record["config_hash"]}
    (path / "identity.json").write_text(json.dumps(identity))
    if the_record["mechanism"] is not None:
        ledger(path, **{"mechanism": the_record["mechanism"], **of_ledger})
    logged = [
        {"step": step, "lr": 0.004, "records": 1045 + 7 * step, "loss": loss, "norm_mean": [norm],
         "seconds": 5.08217721, "clipped": [0.98765432 - 0.01 * step]}
        for step, (loss, norm) in enumerate(zip(LOSSES, NORMS, strict=True))
    ]  # fmt: skip
    write_lines(path / "private/metrics.jsonl", logged)
    written = [
        {"source": f"ask {i}", "prediction": f"say {i}", "references": [f"one {i}", f"two {i}"]}
        for i in range(20)
    ]
    write_lines(path / "generations/test.jsonl", written)
    return path


def a_selection(path):
    """Two secret trials, and the run that was chosen, as `dpft sweep --select` leaves them."""
    for name in ("a", "b"):
        scores = {"test": {"metrics": {"BLEU": 0.7777}, "examples": 3, "signature": "s"}}
        a_run(path / "private/trials" / name, record(scores=scores))
    (path / "private/selection_key").write_text("k")
    (path / "selection.json").write_text("{}")
    curve = run_curve(sampling_rate=0.0243, noise_multiplier=1.07, steps=8)
    found = {"mean": 2.0, "candidates": 2, "metric": "BLEU", "best": "highest"}
    found |= {"orders": curve.orders.tolist(), "rdp": curve.rdp.tolist()}
    a_run(path / "chosen", record(selection=found, privacy={**PRIVACY, "selected": True}))
    (path / "chosen/ledger.jsonl").unlink()
    return path


class Page(html.parser.HTMLParser):
    """A page's text; fails if a tag is not closed, or if the page loads or runs anything."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.ids, self.links = [], [], [], []
        self.policy = ""
        self.feed(text)
        self.close()
        assert self.open == []
        assert self.policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
        assert len(set(self.ids)) == len(self.ids)
        assert set(self.links) <= set(self.ids)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        assert tag not in {"script", "link", "iframe", "object", "img", "image", "use"}
        assert not any(name.startswith("on") for name in given)
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag != "meta":
            self.open.append(tag)
        assert "src" not in given
        assert given.get("href", "#").startswith("#")
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"][1:]] if tag == "a" else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())
