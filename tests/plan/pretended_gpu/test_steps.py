"""What would mix a GPU's tensors with a CPU's, on a machine without a GPU."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths, library_paths

SOURCE = Path(__file__).with_name("device.cpp")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None or torch.version.cuda is not None:
        pytest.skip("for a torch without CUDA, and a compiler")
    made = tmp_path_factory.mktemp("device") / "device.so"
    folders = [f"-I{folder}" for folder in include_paths()]
    (at,) = library_paths()
    linked = [f"-L{at}", f"-Wl,-rpath,{at}", "-ltorch_cpu", "-lc10"]
    options = ["-shared", "-fPIC", "-std=c++20", "-O0", *folders]
    command = [compiler, *options, SOURCE, "-o", made, *linked]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return made


def test_steps_take_no_tensor_of_another_device(library):
    command, root = (
        [sys.executable, "-m", "tests.plan.pretended_gpu.steps"],
        Path(__file__).parents[3],
    )
    # Before torch, which looks for a device once.
    env = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("all done\n")
