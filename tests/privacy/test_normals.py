"""The numbers are standard normal far into their tails, and the same bits wherever drawn."""

import hashlib
import math
import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from dpft.privacy import keys
from dpft.privacy import normals as module
from dpft.privacy.normals import BLOCK, normals, tiles

KEY = keys.derive(b"key", "noise", 3, "wte")
N = 3_000_000
HALF = BLOCK // 2


def digest(drawn: torch.Tensor) -> str:
    return hashlib.sha256(drawn.numpy().tobytes()).hexdigest()


def words(start: int, stop: int) -> torch.Tensor:
    return torch.from_numpy(keys.words(KEY, start, stop))


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    return normals(KEY, 0, N).numpy()


def test_the_numbers_stay_what_they_are():
    """Other code may draw them faster; it may not draw others, or runs could not be replayed."""
    assert KEY.hex() == "9664700fdf53264bdd4026870c0bf03f853e9ff5b5aaef71af55cb1a48f160a8"
    assert [z.hex() for z in normals(KEY, 0, 4).tolist()] == [
        "-0x1.2706a381b708dp+1",
        "-0x1.1c8a12db9ff61p-1",
        "0x1.8d1fc2c115cfdp-1",
        "-0x1.0428f09409488p-4",
    ]
    assert [z.hex() for z in normals(KEY, HALF, HALF + 2).tolist()] == [
        "0x1.fb81450c6bc37p-4",
        "0x1.4b8c0cbb7db0bp-1",
    ]
    assert (
        digest(normals(KEY, 0, 1 << 20))
        == "c96d9fa2979e004d921d809055816c0230b7ec9c5f6805a39294299b9a16c713"
    )


def scalar(first: int, second: int) -> tuple[float, float]:
    """One pair by the operations of Python's floats, which are IEEE's and are never contracted."""

    def horner(coefficients, x):
        value = coefficients[0]
        for coefficient in coefficients[1:]:
            value = value * x
            value = value + coefficient
        return value

    x = float(first | 1)
    m, k = math.frexp(abs(x))
    m, k = (2 * m, k - 64) if 2 * m < math.sqrt(2) else (m, k - 63)
    s = (m - 1.0) / (m + 1.0)
    log = horner(module.LOG, s * s) * s
    radius = math.copysign(math.sqrt(log + k * (-2 * math.log(2))), x)
    t = float(second | 1) * (math.pi / 4 * 2.0**-63)
    cos, sin = horner(module.COS, t * t), horner(module.SIN, t * t) * t
    return (radius * sin, radius * cos) if first & 1 else (radius * cos, radius * sin)


def edges() -> list[int]:
    """Words at which a step of the transform changes its course."""
    powers = [1 << k for k in range(63)]
    halves = [int(math.sqrt(0.5) * 2.0**k) for k in range(12, 64)]
    near = {p + d for p in [*powers, *halves, (1 << 63) - 1] for d in (-2, -1, 0, 1, 2)}
    inside = {p for p in near if p < 1 << 63} | {(1 << 63) - 1 - (1 << k) for k in range(63)}
    return sorted({sign * p for p in inside for sign in (1, -1)} | {-(1 << 63)})


def test_each_step_is_one_ieee_operation():
    """The bits of torch's tensors, in vectors and in their remainders, are those of scalars."""
    at_edges = torch.tensor(edges())
    firsts = torch.cat([at_edges, at_edges, words(0, 20_001)])
    seconds = torch.cat([at_edges, at_edges.flip(0), words(50_000, 70_001)])
    drawn = module._box_muller(torch.stack([firsts, seconds]))
    expected = [scalar(a, b) for a, b in zip(firsts.tolist(), seconds.tolist(), strict=True)]
    assert drawn.isfinite().all()
    assert torch.equal(
        drawn.view(torch.int64), torch.tensor(expected, dtype=torch.float64).T.view(torch.int64)
    )


def test_the_oldest_instruction_set_gives_the_same_numbers():
    script = (
        "import hashlib; from dpft.privacy.normals import normals;"
        "print(hashlib.sha256(normals(bytes(range(32)), 5, 70_000).numpy().tobytes()).hexdigest())"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == digest(normals(bytes(range(32)), 5, 70_000))


def test_a_machine_that_rounds_otherwise_is_refused(monkeypatch):
    drawn = module._box_muller
    zero = torch.zeros((), dtype=torch.float64)
    monkeypatch.setattr(module, "_box_muller", lambda words: drawn(words).nextafter(zero))
    with pytest.raises(RuntimeError, match="known numbers"):
        module._check_machine.__wrapped__()


@pytest.fixture(scope="module")
def whole() -> torch.Tensor:
    return normals(KEY, 0, 200_003)


@given(
    start=st.integers(0, 200_003) | st.sampled_from([BLOCK - 1, BLOCK, 1 << 16, (1 << 16) + 1]),
    length=st.integers(0, 5) | st.integers(0, 140_000) | st.sampled_from([BLOCK, 1 << 16]),
)
@settings(deadline=None)
def test_any_slice_is_that_of_the_whole(whole, start, length):
    """Also next to slices of other keys, which are drawn together with it."""
    stop = min(start + length, len(whole))
    found = [torch.empty(0)] * 3
    for which, at, z in tiles([(bytes(32), 5, 1030), (KEY, start, stop), (bytes(32), 0, 3)]):
        assert at == (5, start, 0)[which] + len(found[which])
        found[which] = torch.cat([found[which], z])
    assert torch.equal(found[1], whole[start:stop])
    other = normals(bytes(32), 0, 1030)
    assert torch.equal(found[0], other[5:])
    assert torch.equal(found[2], other[:3])


def test_the_whole_distribution_is_normal(many):
    """Kolmogorov-Smirnov and Anderson-Darling, each below its one-percent point."""
    z = np.sort(many)
    assert (np.diff(z) > 0).all()  # no number comes twice
    below = special.ndtr(z)
    ranks = np.arange(1, N + 1)
    apart = max((ranks / N - below).max(), (below - (ranks - 1) / N).max())
    assert apart * math.sqrt(N) < 1.63
    logs = special.log_ndtr(z) + special.log_ndtr(-z[::-1])
    assert -N - ((2 * ranks - 1) / N * logs).sum() < 3.86


def test_words_give_what_the_formula_gives():
    """Within four units in the last place of a computation with forty digits."""
    firsts = [*edges()[::7], *words(0, 300).tolist()]
    seconds = words(1000, 1000 + len(firsts)).tolist()
    drawn = module._box_muller(torch.tensor([firsts, seconds])).T.tolist()
    with mpmath.workdps(40):
        for first, second, pair in zip(firsts, seconds, drawn, strict=True):
            u = mpmath.mpf(int(float(abs(first | 1)))) / 2**63
            angle = mpmath.mpf(second | 1) / 2**63 * mpmath.pi / 4
            r = mpmath.sqrt(-2 * mpmath.log(u)) * mpmath.sign(first | 1)
            exact = (r * mpmath.cos(angle), r * mpmath.sin(angle))[:: -1 if first & 1 else 1]
            for z, expected in zip(pair, exact, strict=True):
                assert abs(z - expected) <= 4 * 2.0**-53 * abs(expected), (first, second)


def others(many: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    n = 1 << 20
    x = many[:n]
    halves = many[: 2 * n].reshape(-1, 2, HALF)
    pairs = {f"{lag} further": (x, many[lag : n + lag]) for lag in (1, 2, 8, 16, 512, 1024, 65536)}
    pairs["the two of a pair"] = (halves[:, 0].ravel(), halves[:, 1].ravel())
    for name, key in {
        "another key": keys.derive(b"kex", "noise", 3, "wte"),
        "another step": keys.derive(b"key", "noise", 4, "wte"),
        "another parameter": keys.derive(b"key", "noise", 3, "wpe"),
        "another purpose": keys.derive(b"key", "quantiles", 3, "wte"),
    }.items():
        pairs[name] = (x, normals(key, 0, n).numpy())
    return pairs


def test_numbers_are_independent_of_each_other(many):
    """Of neighbours, of the two of a pair, of blocks, keys, steps and parameters."""
    for name, (x, y) in others(many).items():
        assert (x != y).all(), name
        for f in (lambda z: z, np.square, np.abs, np.sign):
            assert abs(np.corrcoef(f(x), f(y))[0, 1]) < 4.5 / math.sqrt(len(x)), name
        assert abs(np.corrcoef(x, np.square(y))[0, 1]) < 4.5 / math.sqrt(len(x)), name
