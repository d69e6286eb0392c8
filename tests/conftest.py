"""All tests run offline, on one thread, with caches of their own."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Read when torch, numpy and the Hugging Face libraries are imported, so set before any of them is:
# here, and inherited by pytest-xdist's workers and by the commands that tests start.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As of the program (`dpft.cli.app.main`), which tests call in parts: threads that spin while they
# wait hold a core that another test needs.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
# Commands that tests start share what one of them compiled: of an editable install nothing is.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Examples are the same on every run; HYPOTHESIS_PROFILE=explore draws new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Runs sync their files, thousands of times in all. Waiting for a disk shows nothing: where memory
# is a file system with room enough, tests write there.
MEMORY, NEEDED_BYTES = "/dev/shm", 4 << 30

_session_cache = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Give the session its own caches and check DPFT_DATA, once, before any worker starts."""
    if hasattr(config, "workerinput"):
        return
    writable = "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK | os.X_OK)
    if writable and shutil.disk_usage(MEMORY).free >= NEEDED_BYTES:
        os.environ["TMPDIR"] = MEMORY  # of the tests' processes, too
        tempfile.tempdir = None  # it is read again
    cache = tempfile.mkdtemp(prefix="dpft-tests-")
    config.stash[_session_cache] = cache
    os.environ["DPFT_CACHE_DIR"] = str(Path(cache, "dpft"))
    os.environ["HF_HOME"] = str(Path(cache, "huggingface"))
    if given := os.environ.get("DPFT_DATA"):
        root = (config.invocation_params.dir / given).resolve()
        if not root.is_dir():
            raise pytest.UsageError(f"DPFT_DATA is {given!r}; expected a folder, or unset it")
        os.environ["DPFT_DATA"] = str(root)  # absolute: tests change their working directory


def pytest_unconfigure(config: pytest.Config) -> None:
    if cache := config.stash.get(_session_cache, None):
        shutil.rmtree(cache, ignore_errors=True)


@pytest.fixture(scope="module")
def quick_scores() -> Iterator[None]:
    """Scores of e2e without Java: the metric has other tests."""
    scores = {"BLEU": 0.5, "NIST": 1.0, "METEOR": 0.2, "ROUGE_L": 0.3, "CIDEr": 0.4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpft.tasks.metrics.e2e_scores.score", lambda predictions, references: scores)
        patch.setattr("dpft.tasks.metrics.e2e_scores.signature", lambda: "quick")
        yield


# Compilers, Java, builds of packages, and runs that are killed again and again.
SLOW = ("test_packaging.py", "test_torture.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with `data_root` as `realdata`, and files above and large ``size`` as `slow`."""
    for item in items:
        if "data_root" in getattr(item, "fixturenames", ()):
            item.add_marker("realdata")
        given = item.callspec.params if hasattr(item, "callspec") else {}
        parallel = "tests/parallel/" in item.path.as_posix()
        if item.path.as_posix().endswith(SLOW) or (parallel and given.get("size", 0) > 2):
            item.add_marker("slow")


@pytest.fixture(scope="module", autouse=True)
def _settled() -> None:
    """Keep the garbage collector from looking through objects of imported packages again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _captures_stay_open() -> None:
    """Keep Hydra, which closes all log handlers, from closing a stream with which pytest captures.

    It is absl's, which rouge-score imports in whichever test is first.
    """
    from absl import logging

    logging.get_absl_handler().python_handler.stream = sys.__stderr__


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real datasets, one subfolder each. Skips the test where there is none."""
    given = os.environ.get("DPFT_DATA")
    if not given:
        pytest.skip("real data are not here: set DPFT_DATA")
    return Path(given)


@pytest.fixture(autouse=True)
def _forget_hydra() -> Iterator[None]:
    """Hydra keeps its state in a global: no test sees another's."""
    yield
    if hydra_state := sys.modules.get("hydra.core.global_hydra"):
        hydra_state.GlobalHydra.instance().clear()
