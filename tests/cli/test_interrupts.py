"""Ctrl-C before anything has begun: a sentence and status 130, at whichever import it comes."""

import subprocess
import sys

import pytest

# Where the process is interrupted: at the first import of that name, by the signal of Ctrl-C.
CODE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["dpft", "ls", "task"]
from dpft.__main__ import main
main()
"""


def interrupted(module, handler="default_int_handler"):
    code = CODE.format(module=module, handler=handler)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("module", ["dpft.cli.app", "typer", "dpft.cli.ls"])
def test_ctrl_c_during_an_import_is_a_sentence(module):
    done = interrupted(module)
    assert done.returncode == 130
    assert done.stderr == "dpft: stopped; nothing had begun, the same command begins anew\n"


def test_where_it_is_ignored_it_still_is():
    done = interrupted("typer", "SIG_IGN")
    assert done.returncode == 0
    assert "e2e" in done.stdout
