"""Privacy accounting for DP-SGD: epsilon from noise, and noise from epsilon.

One mechanism is accounted here: ``steps`` releases of a sum of clipped per-example gradients plus
Gaussian noise of standard deviation ``noise_multiplier`` times the sensitivity, each on a Poisson
sample that takes every record with probability ``sampling_rate``. Neighbouring datasets differ by
adding or removing one record. Three accountants turn it into epsilon (in nats) at a given delta:
Renyi DP (a proven upper bound), the Gaussian-DP central limit theorem (an approximation, often too
small), and numerical composition of privacy random variables (bounds from both sides).
``docs/accounting.md`` compares them with printed numbers and lists the limits.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import integrate, optimize, special

Array = npt.NDArray[np.float64]
Conversion = Literal["classic", "improved"]
Accountant = Literal["rdp", "gdp_clt", "prv"]

ACCOUNTING_VERSION = 1  # part of every cache key: raise it whenever a number below can change
DEFAULT_CONVERSION: Conversion = "improved"
MIN_NOISE, MAX_NOISE = 1e-6, 1e6  # where calibration looks
PRV_RELATIVE_ERROR = 0.01  # wanted error of the PRV bounds, as a share of the RDP epsilon
PRV_MAX_POINTS = 200_000  # of the PRV grid: about 2 seconds and 200 MB
PRV_MAX_EPSILON = 200.0  # beyond it no guarantee is left to refine, and exp() loses its digits
CACHE_MAX_ENTRIES = 10_000


@dataclass(frozen=True)
class PRVEpsilon:
    """Epsilon bounds: ``lower`` <= ``estimate`` <= ``upper``; ``note`` says what was unusual."""

    lower: float
    estimate: float
    upper: float
    method: Literal["prv", "rdp-fallback"] = "prv"
    note: str = ""


class _PRVUnavailableError(Exception):
    """Why the PRV accountant gave no number; never leaves this module."""


# --- checks -------------------------------------------------------------------------------------


def _validate(
    *,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    delta: float | None = None,
) -> None:
    """Raises ValueError for the first argument outside its range (NaN is outside every range)."""
    if sampling_rate is not None and not 0 < sampling_rate <= 1:
        raise ValueError(
            f"got sampling_rate={sampling_rate}; expected a number in (0, 1]. It is batch size / "
            "dataset size: choose a batch size of at least 1 and at most the dataset size."
        )
    if noise_multiplier is not None and not noise_multiplier >= 0:
        raise ValueError(
            f"got noise_multiplier={noise_multiplier}; expected a number >= 0 (0 means no privacy)."
            " Leave it out and set privacy.epsilon=8 to have it calibrated."
        )
    if steps is not None and (steps != steps // 1 or steps < 0):
        raise ValueError(
            f"got steps={steps}; expected a whole number >= 0. "
            "Use steps_for(dataset_size=..., batch_size=..., epochs=...)."
        )
    if delta is not None and not 0 < delta < 1:
        raise ValueError(
            f"got delta={delta}; expected a number in (0, 1), smaller than 1 / dataset size. "
            "Type for instance privacy.delta=1e-5; the papers take 1 / (2 * dataset size)."
        )


def steps_for(*, dataset_size: int, batch_size: int, epochs: float) -> int:
    """Optimizer steps of a run: ``epochs`` times the whole batches in one epoch, rounded up.

    An epoch is ``floor(dataset_size / batch_size)`` steps, as with a loader that drops its last
    incomplete batch: that is what reproduces the papers' converted epsilons (docs/accounting.md).
    Any count is honest as long as the run takes the steps that were accounted for.

    Raises:
        ValueError: if a size is below 1, ``batch_size > dataset_size`` or ``epochs < 0``.
    """
    if dataset_size < 1 or not 1 <= batch_size <= dataset_size or not 0 <= epochs < math.inf:
        raise ValueError(
            f"got dataset_size={dataset_size}, batch_size={batch_size}, epochs={epochs}; expected "
            "1 <= batch_size <= dataset_size and 0 <= epochs. Lower the batch size, or check that "
            "the dataset is complete."
        )
    steps = epochs * (dataset_size // batch_size)
    return math.ceil(steps * (1 - 1e-12))  # 0.1 * 30 is 3.0000000000000004 and must not buy a step


# --- cache --------------------------------------------------------------------------------------


def _cache_path() -> Path:
    folder = os.environ.get("DPFT_CACHE_DIR")
    if folder:
        return Path(folder) / "accounting.json"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dpft" / "accounting.json"


def _read_cache() -> dict[str, Any]:
    # A cache that cannot be read is an empty one: it saves time and must never stop a run.
    try:
        entries = json.loads(_cache_path().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RecursionError is a RuntimeError
        return {}
    return entries if isinstance(entries, dict) else {}


def _write_cache(key: str, value: tuple[float, ...]) -> None:
    entries = {**_read_cache(), key: value}
    temporary: Path | None = None
    try:
        path = _cache_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Readers see the old file or the new one. Two writers at once may lose an entry: harmless.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
            json.dump(dict(list(entries.items())[-CACHE_MAX_ENTRIES:]), file)
        temporary.replace(path)
    except (OSError, RuntimeError):
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


_Numbers = Callable[..., tuple[float, ...]]


def _disk_cached(count: int) -> Callable[[_Numbers], _Numbers]:
    """Remembers the ``count`` numbers that a function returned, by its name and keywords."""

    def decorate(function: _Numbers) -> _Numbers:
        @functools.wraps(function)
        def cached(**arguments: Any) -> tuple[float, ...]:
            key = json.dumps([ACCOUNTING_VERSION, function.__name__, arguments], sort_keys=True)
            hit = _read_cache().get(key)
            # Whatever is stored here is >= 0 and ascending; NaN and other types are not.
            if (
                isinstance(hit, list)
                and len(hit) == count
                and all(type(x) is float for x in hit)
                and all(low <= high for low, high in itertools.pairwise([0.0, *hit]))
            ):
                return tuple(hit)
            value = function(**arguments)
            _write_cache(key, value)
            return value

        return cached

    return decorate


# --- Renyi DP -----------------------------------------------------------------------------------

_FRACTIONAL_ORDERS: Array = np.array(
    [1 + i / 100 for i in range(1, 10)] + [1 + i / 10 for i in range(1, 100) if i % 10]
)
_INTEGER_ORDERS: Array = np.unique(
    np.concatenate([np.arange(2, 65), np.round(2 ** np.linspace(6, 14, 65))])
).astype(np.float64)
# Below this noise the fractional orders would need a very fine grid; they use their bound at q=1.
_MIN_FRACTIONAL_NOISE = 0.05


@functools.lru_cache(maxsize=1)
def _binomials() -> tuple[Array, Array, Array, npt.NDArray[np.intp]]:
    """``(k, alpha, log C(alpha, k))`` for 2 <= k <= alpha, flat, and where each order starts."""
    k = np.concatenate([np.arange(2, alpha + 1) for alpha in _INTEGER_ORDERS])
    counts = (_INTEGER_ORDERS - 1).astype(np.intp)
    alpha = np.repeat(_INTEGER_ORDERS, counts)
    log_comb = special.gammaln(alpha + 1) - special.gammaln(k + 1) - special.gammaln(alpha - k + 1)
    return k, alpha, log_comb, np.concatenate([[0], np.cumsum(counts)[:-1]])


def _log_excess_integer(q: float, sigma: float) -> Array:
    """``log(A_alpha - 1)`` at the integer orders, from Mironov et al. (2019), Section 3.3.

    ``A_alpha = sum_k C(alpha, k) (1-q)^(alpha-k) q^k exp((k^2 - k) / (2 sigma^2))``. The same sum
    without the exponential is 1, so subtracting it term by term leaves only non-negative terms
    (none for k = 0 and 1) and no digits are lost where A_alpha is close to 1.
    """
    k, alpha, log_comb, starts = _binomials()
    x = (k * k - k) / (2 * sigma * sigma)
    with np.errstate(divide="ignore"):  # log(0) = -inf where the noise leaves nothing, as it should
        terms = log_comb + (alpha - k) * math.log1p(-q) + k * math.log(q)
        terms += x + np.log(-np.expm1(-x))
        peak = np.maximum.reduceat(terms, starts)
        shift = np.where(np.isfinite(peak), peak, 0.0)
        scaled = np.exp(terms - np.repeat(shift, np.diff(starts, append=k.size)))
        return np.asarray(shift + np.log(np.add.reduceat(scaled, starts)))


def _log_excess_fractional(q: float, sigma: float) -> Array:
    """``log(A_alpha - 1)`` at the fractional orders, by the trapezoidal rule.

    ``A_alpha = E_{z ~ N(0, sigma^2)}[r(z)^alpha]`` with
    ``r(z) = 1 - q + q exp((2z - 1) / (2 sigma^2))`` (Mironov et al., 2019, Section 3.3). E[r] = 1,
    so ``A_alpha - 1 = E[r^alpha - 1 - alpha (r - 1)]``, whose integrand is never negative. It is
    analytic for ``|Im z| < pi sigma^2``: the error falls as exp(-2 pi^2 sigma^2 / step), which a
    step of min(sigma, sigma^2) / 3 brings below rounding. (The paper's erfc series has the same
    value but alternates, and needs thousands of terms where q is large.)
    """
    alpha = _FRACTIONAL_ORDERS[:, None]
    step = min(sigma, sigma * sigma) / 3
    z = np.arange(-10 * sigma, _FRACTIONAL_ORDERS[-1] + 10 * sigma, step)
    u = (2 * z - 1) / (2 * sigma * sigma)
    x = q * np.expm1(np.minimum(u, 50.0))  # r - 1, used only where it is moderate
    log_r = np.where(u < 50.0, np.log1p(x), np.logaddexp(math.log1p(-q), math.log(q) + u))
    growth = alpha * log_r
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        series = 1 + (alpha - 2) / 3 * x * (1 + (alpha - 3) / 4 * x * (1 + (alpha - 4) / 5 * x))
        log_integrand = np.select(
            [np.abs(x) < 1e-3, growth < 1],
            [
                np.log(alpha * (alpha - 1) / 2 * x * x * series),
                np.log(np.expm1(np.minimum(growth, 1.0)) - alpha * x),
            ],
            growth + np.log1p((alpha - 1) * np.exp(-growth) - alpha * np.exp(log_r - growth)),
        )
    log_density = -z * z / (2 * sigma * sigma) - math.log(sigma * math.sqrt(2 * math.pi))
    return np.asarray(special.logsumexp(log_integrand + log_density, axis=1)) + math.log(step)


@dataclass(frozen=True, eq=False)
class RDPCurve:
    """Renyi DP of one step: ``rdp[i]`` at ``orders[i]``, both of shape (orders,).

    Renyi DP adds up over steps, so epsilon after each step of a run costs microseconds.
    """

    orders: Array
    rdp: Array

    def epsilon(
        self, steps: int, delta: float, *, conversion: Conversion = DEFAULT_CONVERSION
    ) -> float:
        """Epsilon after ``steps`` steps, the least over all orders.

        ``classic`` is Mironov (2017), Proposition 3. ``improved`` is Canonne, Kamath & Steinke
        (2020), Proposition 12 (Balle et al., 2020, Theorem 21); it is never larger.

        Guarantee: ``steps`` steps are (epsilon, delta)-DP. Each order proves its own epsilon, so
        the least is proven as well.
        """
        _validate(steps=steps, delta=delta)
        if conversion not in get_args(Conversion):
            raise ValueError(
                f"got conversion={conversion!r}; expected one of {get_args(Conversion)}. "
                f"Leave it out for {DEFAULT_CONVERSION!r}, which the papers used."
            )
        if steps == 0 or not self.rdp.any():
            return 0.0
        epsilon = self.rdp * float(steps) - math.log(delta) / (self.orders - 1)
        if conversion == "improved":
            epsilon += np.log1p(-1 / self.orders) - np.log(self.orders) / (self.orders - 1)
        return max(0.0, float(epsilon.min()))


def rdp_curve(*, sampling_rate: float, noise_multiplier: float) -> RDPCurve:
    """Renyi DP of one step of the Poisson-subsampled Gaussian mechanism at all our orders.

    Source: Mironov, Talwar & Zhang (2019), Theorem 4 and Section 3.3. Their Theorem 5 shows that
    removing a record is the worse direction for every order, so one direction is computed.

    Guarantee: ``rdp[i]`` bounds the Renyi divergence of order ``orders[i]`` in both directions.
    """
    _validate(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    q, sigma = float(sampling_rate), float(noise_multiplier)
    orders = np.concatenate([_FRACTIONAL_ORDERS, _INTEGER_ORDERS])
    if sigma < 1e-100:  # its square is not a number any more; infinity stays an upper bound
        return RDPCurve(orders, np.full_like(orders, np.inf))
    if sigma > 1e100:
        return RDPCurve(orders, np.zeros_like(orders))
    rdp: Array = orders / (2 * sigma * sigma)  # exact at q=1, and sampling can only lower it
    if q < 1:
        used = orders if sigma >= _MIN_FRACTIONAL_NOISE else _INTEGER_ORDERS
        log_excess = _log_excess_integer(q, sigma)
        if used is orders:
            log_excess = np.concatenate([_log_excess_fractional(q, sigma), log_excess])
        sampled = np.logaddexp(0.0, log_excess) / (used - 1)
        rdp[-used.size :] = np.minimum(rdp[-used.size :], sampled)
    return RDPCurve(orders, rdp)


def epsilon_rdp(
    *,
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    conversion: Conversion = DEFAULT_CONVERSION,
) -> float:
    """Epsilon by Renyi DP (see :func:`rdp_curve` and :meth:`RDPCurve.epsilon`).

    0 steps cost 0; no noise costs infinity.

    Guarantee: an upper bound on the true epsilon under Poisson sampling.

    Raises:
        ValueError: if an argument is outside its range.
    """
    curve = rdp_curve(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    return curve.epsilon(steps, delta, conversion=conversion)


# --- Gaussian DP --------------------------------------------------------------------------------


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-GDP at delta: the inverse of Dong et al. (2019), Corollary 1.

    With epsilon = mu^2/2 + mu x, delta is Phi(-x) - exp(-x^2/2) erfcx((x + mu) / sqrt 2) / 2: no
    power of e is left to overflow, and x is bounded whatever mu is.
    """
    if special.erf(mu / math.sqrt(8)) <= delta:  # delta at epsilon 0 is already small enough
        return 0.0
    if mu > 1e150:
        return math.inf

    def excess(x: float) -> float:
        tail = special.erfcx((x + mu) / math.sqrt(2))
        if x < 0:
            value = special.ndtr(-x) - math.exp(-x * x / 2) * tail / 2
        else:
            value = math.exp(-x * x / 2) * (special.erfcx(x / math.sqrt(2)) - tail) / 2
        return math.log(max(value, 1e-320)) - math.log(delta)

    # delta(x) <= Phi(-x) lies between these for every delta in (0, 1).
    low, high = max(-mu / 2, -40.0), math.sqrt(-2 * math.log(delta))
    x = optimize.brentq(excess, low, high, xtol=1e-13, rtol=1e-13)
    return max(0.0, mu * (mu / 2 + float(x)))


def epsilon_gdp_clt(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> float:
    """Epsilon by the central limit theorem of Gaussian DP.

    ``mu = q sqrt(T (exp(1 / sigma^2) - 1))`` (Bu et al., 2020, Poisson sampling), read as mu-GDP.
    An approximation for many steps, usually too small: printed beside the papers' numbers, not a
    guarantee. At ``sampling_rate=1`` it is not the exact ``sqrt(T) / sigma`` but above it.

    Raises:
        ValueError: if an argument is outside its range.
    """
    _validate(
        sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=steps, delta=delta
    )
    if steps == 0 or noise_multiplier > 1e100:
        return 0.0
    if noise_multiplier < 1e-100:
        return math.inf
    x = 1 / float(noise_multiplier) ** 2
    log_growth = x + math.log(-math.expm1(-x))  # log(exp(x) - 1), for any x
    log_mu = math.log(sampling_rate) + (math.log(steps) + log_growth) / 2
    return _gaussian_epsilon(math.exp(log_mu), delta) if log_mu < 345 else math.inf


# --- privacy random variables -------------------------------------------------------------------


@_disk_cached(3)
def _prv_bounds(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> tuple[float, ...]:
    curve = rdp_curve(sampling_rate=sampling_rate, noise_multiplier=noise_multiplier)
    expected = curve.epsilon(steps, delta)
    if expected > PRV_MAX_EPSILON:
        raise _PRVUnavailableError(f"epsilon is beyond {PRV_MAX_EPSILON:g}")
    delta_error = delta / 1000
    # The library takes its probabilities in double precision; each step may add that rounding.
    if steps * np.finfo(np.float64).eps > delta_error:
        raise _PRVUnavailableError(f"delta={delta:g} drowns in the rounding of {steps} steps")
    # The library's own domain (Gopi et al., 2021, Remark 5.6), with our Renyi DP: its own may hang.
    tail = max(curve.epsilon(steps, delta_error / 4), curve.epsilon(1, delta_error / 8 / steps))
    mesh_factor = math.sqrt(steps / 2 * math.log(12 / delta_error))
    width = max(tail, PRV_RELATIVE_ERROR * expected) + 3
    eps_error = max(PRV_RELATIVE_ERROR * expected, 2 * width * mesh_factor / PRV_MAX_POINTS)
    if not eps_error < expected / 2:
        raise _PRVUnavailableError(
            f"bounds tighter than epsilon itself need a grid of over {PRV_MAX_POINTS} points"
        )
    try:
        prv_accountant = importlib.import_module("prv_accountant")
        with warnings.catch_warnings():
            warnings.simplefilter("error", integrate.IntegrationWarning)
            warnings.filterwarnings("ignore", message="Assuming that true epsilon")
            accountant = prv_accountant.PRVAccountant(
                prvs=[
                    prv_accountant.PoissonSubsampledGaussianMechanism(
                        sampling_probability=sampling_rate, noise_multiplier=noise_multiplier
                    )
                ],
                max_self_compositions=[steps],
                eps_error=eps_error,
                delta_error=delta_error,
                eps_max=width,
            )
            lower, estimate, upper = accountant.compute_epsilon(delta, [steps])
    except Exception as error:  # whatever it trips over, Renyi DP still gives a valid bound
        raise _PRVUnavailableError(f"{type(error).__name__}: {error}") from error
    if not (math.isfinite(upper) and lower <= estimate <= upper):
        raise _PRVUnavailableError(f"it returned {lower}, {estimate}, {upper}")
    return max(0.0, lower), max(0.0, estimate), max(0.0, upper)


def epsilon_prv(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> PRVEpsilon:
    """Epsilon by numerical composition (Gopi, Lee & Wutschitz, 2021), with bounds on both sides.

    The wanted error is 1% of epsilon, less when the grid would outgrow ``PRV_MAX_POINTS``. Where
    the library fails or epsilon is huge, Renyi DP gives ``estimate`` and ``upper``, ``lower`` is 0,
    ``method`` is ``"rdp-fallback"`` and ``note`` says why. At ``sampling_rate=1`` the composition
    is one Gaussian mechanism and its exact epsilon is returned.

    Guarantee: the true epsilon under Poisson sampling is at most ``upper``, up to the rounding of
    floating-point arithmetic in the library. ``estimate`` guarantees nothing.

    Raises:
        ValueError: if an argument is outside its range.
    """
    bound = epsilon_rdp(
        sampling_rate=sampling_rate, noise_multiplier=noise_multiplier, steps=steps, delta=delta
    )
    q, sigma, steps = float(sampling_rate), float(noise_multiplier), int(steps)
    if bound in (0.0, math.inf):
        return PRVEpsilon(bound, bound, bound)
    if q == 1:
        exact = _gaussian_epsilon(math.sqrt(steps) / sigma, delta)
        return PRVEpsilon(exact, exact, exact, note="full batches: exact for Gaussian noise")
    try:
        lower, estimate, upper = _prv_bounds(
            sampling_rate=q, noise_multiplier=sigma, steps=steps, delta=float(delta)
        )
    except _PRVUnavailableError as error:
        return PRVEpsilon(0.0, bound, bound, "rdp-fallback", f"PRV gave no bounds ({error}); RDP")
    # Both are upper bounds, so the smaller one is too.
    return PRVEpsilon(min(lower, bound), min(estimate, bound), min(upper, bound))


# --- all together -------------------------------------------------------------------------------


def all_epsilons(
    *, sampling_rate: float, noise_multiplier: float, steps: int, delta: float
) -> dict[str, Any]:
    """Epsilon by every accountant, ready for JSON.

    Returns:
        ``{"rdp": float, "gdp_clt": float, "prv": {"lower", "estimate", "upper"}}``; ``prv`` also
        has ``"note"`` when there is something to say.
    """
    kwargs: dict[str, Any] = {
        "sampling_rate": sampling_rate,
        "noise_multiplier": noise_multiplier,
        "steps": steps,
        "delta": delta,
    }
    prv = epsilon_prv(**kwargs)
    bounds: dict[str, Any] = {"lower": prv.lower, "estimate": prv.estimate, "upper": prv.upper}
    if prv.note:
        bounds["note"] = prv.note
    return {"rdp": epsilon_rdp(**kwargs), "gdp_clt": epsilon_gdp_clt(**kwargs), "prv": bounds}


def _epsilon_by(accountant: str, conversion: Conversion, **kwargs: Any) -> float:
    if accountant == "rdp":
        return epsilon_rdp(**kwargs, conversion=conversion)
    return epsilon_gdp_clt(**kwargs) if accountant == "gdp_clt" else epsilon_prv(**kwargs).upper


def _search_noise(*, target: float, tol: float, **kwargs: Any) -> tuple[float, ...]:
    """The noise multiplier, or infinity where none up to ``MAX_NOISE`` is enough."""

    @functools.cache  # brentq asks again for the ends of the bracket
    def excess(log_sigma: float) -> float:
        epsilon = _epsilon_by(noise_multiplier=math.exp(log_sigma), **kwargs)
        return math.log(min(max(epsilon, 1e-300), 1e300) / target)

    # PRV epsilons are slow, and never above those by RDP: RDP finds where to start.
    high = 0.0
    if kwargs["accountant"] == "prv":
        found = _search_noise(target=target, tol=1e-3, **{**kwargs, "accountant": "rdp"})[0]
        high = math.log(found) if math.isfinite(found) else high
    while excess(high) > 0:
        if high > math.log(MAX_NOISE):
            return (math.inf,)
        high += 0.5
    low = high - 0.5
    while excess(low) <= 0:
        if low < math.log(MIN_NOISE):
            return (math.exp(low),)
        low, high = low - 0.5, low
    # The sign changes within tol / 4 of the root, so the noise that is enough lies just above it.
    root = optimize.brentq(excess, low, high, xtol=tol / 4, rtol=1e-12)
    for candidate in (root, root + tol / 4, root + tol / 2, root + tol):
        if excess(candidate) <= 0:
            return (math.exp(candidate),)
    return (math.exp(high),)


_search_noise_cached = _disk_cached(1)(_search_noise)


def calibrate_noise(
    *,
    target_epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    accountant: Accountant | str = "rdp",
    conversion: Conversion = DEFAULT_CONVERSION,
    tol: float = 1e-4,
) -> float:
    """The smallest noise multiplier whose epsilon is at most ``target_epsilon``.

    Args:
        target_epsilon: the budget, in nats. Infinity, like 0 steps, needs no noise and gives 0.
        delta: the failure probability, in (0, 1).
        sampling_rate: probability of each record in a step, in (0, 1].
        steps: optimizer steps of the whole run.
        accountant: ``"rdp"``, ``"gdp_clt"``, or ``"prv"`` (its upper bound).
        conversion: from Renyi DP to epsilon; only ``accountant="rdp"`` uses it.
        tol: relative tolerance; the result is at most this share above the smallest.

    Guarantee: epsilon of the result, recomputed before it is returned, does not exceed the target.
    With ``"gdp_clt"`` that epsilon is itself only an approximation.

    Raises:
        ValueError: if an argument is outside its range, or no noise is enough.
    """
    _validate(sampling_rate=sampling_rate, steps=steps, delta=delta)
    if not target_epsilon > 0:
        raise ValueError(
            f"got epsilon={target_epsilon}; expected a number > 0. "
            "Type for instance privacy.epsilon=8."
        )
    if accountant not in get_args(Accountant):
        raise ValueError(
            f"got accountant={accountant!r}; expected one of {get_args(Accountant)}. "
            "Type privacy.accountant=rdp."
        )
    if not 0 < tol < 1:
        raise ValueError(f"got tol={tol}; expected a number in (0, 1). Leave it out for 1e-4.")
    if steps == 0 or target_epsilon == math.inf:
        return 0.0
    setting: dict[str, Any] = {
        "accountant": accountant,
        "conversion": conversion,
        "delta": float(delta),
        "sampling_rate": float(sampling_rate),
        "steps": int(steps),
    }
    search: dict[str, Any] = {"target": float(target_epsilon), "tol": float(tol), **setting}
    (sigma,) = _search_noise_cached(**search)
    # The number may come from a file that anything could have changed: never trust, check.
    if _epsilon_by(noise_multiplier=sigma, **setting) > target_epsilon or sigma == math.inf:
        (sigma,) = _search_noise(**search)
    if sigma == math.inf:
        least = _epsilon_by(noise_multiplier=MAX_NOISE, **setting)
        raise ValueError(
            f"got epsilon={target_epsilon} with delta={delta}; expected at least {least:.3g}, "
            f"the least that accountant={accountant} can show even with noise {MAX_NOISE:g}. "
            f"Type privacy.epsilon={math.ceil(least * 1e3) / 1e3:g}, or a larger privacy.delta."
        )
    return sigma
