"""A hub's model without the hub."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub.constants import HF_HUB_CACHE


@pytest.fixture
def hub():
    """Puts a folder where a download of a hub's model would be."""
    made = []

    def put(name, folder):
        home = Path(HF_HUB_CACHE, "models--" + name.replace("/", "--"))
        made.append(home)
        (home / "refs").mkdir(parents=True)
        (home / "refs" / "main").write_text("c0ffee")
        shutil.copytree(folder, home / "snapshots" / "c0ffee")

    yield put
    for home in made:
        shutil.rmtree(home)
