"""The check of a GPU that is lent for minutes passes here in tiny sizes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/gpu_check.py"


@pytest.mark.slow
def test_the_gpu_check_passes_on_a_cpu(tmp_path):
    words = [sys.executable, SCRIPT, "--device=cpu", "--small", "--parts=exact,steps:40"]
    done = subprocess.run(words, env={**os.environ, "OUT": str(tmp_path)}, capture_output=True)
    assert done.returncode == 0, done.stdout
    parts = json.loads((tmp_path / "gpu_check.json").read_text())["parts"].values()
    assert len(parts) == 2
    assert sum(result["ok"] is True for part in parts for result in part["results"]) == 25
