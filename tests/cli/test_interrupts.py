"""A signal before anything is started: a sentence and its exit status, at any import."""

import os
import signal
import subprocess
import sys

import pytest

from dpft.cli.guard import guarded
from dpft.cli.interrupts import Stopped, end_at_signals
from dpft.config.errors import NO_STEP, ConfigError

# Where the process is interrupted: at the first import of that name, by that signal.
CODE = """
import os, signal, sys
signal.signal({number}, signal.{handler})

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupting())
sys.argv = ["dpft", "ls", "task"]
from dpft.__main__ import main
main()
"""


SAID = "dpft: stopped; nothing was started, the same command starts over\n"


@pytest.mark.parametrize(
    ("module", "number", "rank", "said"),
    [
        ("typer", signal.SIGINT, "0", SAID),
        ("dpft.cli.inputs", signal.SIGINT, "0", SAID),
        ("typer", signal.SIGTERM, "0", SAID),
        ("typer", signal.SIGTERM, "1", ""),  # of several ranks the first says it
    ],
)
def test_a_signal_during_an_import_is_a_sentence(module, number, rank, said):
    handler = "default_int_handler" if number == signal.SIGINT else "SIG_DFL"
    code = CODE.format(module=module, handler=handler, number=int(number))
    env = os.environ | {"RANK": rank}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (128 + number, said)


def status_of(verb, resumes="resumes"):
    with pytest.raises(SystemExit) as ended:
        guarded(verb, "train", resumes)()
    return ended.value.code


def test_a_library_that_trips_over_an_interrupt_does_not_hide_it(capsys):
    """As omegaconf does, which is interrupted before it has set what it puts back."""

    def verb():
        try:
            raise Stopped(signal.SIGTERM)
        finally:
            print(never)  # noqa: F821

    assert status_of(verb) == 128 + signal.SIGTERM
    assert "dpft: stopped" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("resumes", "notes", "said"),
    [
        (True, [], "the same command continues from what is kept"),
        (True, [NO_STEP], f"{NO_STEP}; the same command starts over"),
        (True, ["step 2 is saved"], "the same command continues where it left off (step 2 is sav"),
        (False, ["step 2 is saved"], "step 2 is saved; the same command starts over"),
    ],
)
def test_the_message_promises_to_continue_what_was_started(capsys, resumes, notes, said):
    def verb():
        error = Stopped(signal.SIGINT)
        error.__notes__ = notes
        raise error

    status_of(verb, "resumes" if resumes else "")
    assert capsys.readouterr().err.startswith(f"dpft: stopped; {said}")


def refused():
    raise ConfigError("rank 1 of 2 stopped")


@pytest.mark.parametrize("place", ["refuse", "restore_signals"])
def test_a_signal_while_an_error_ends_the_verb_ends_it_by_that_signal(monkeypatch, place):
    """Of two ranks one is killed, and torchrun stops the other while that prints its error."""

    def interrupted(*said):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(f"dpft.cli.guard.{place}", interrupted)
    assert status_of(refused) == 143


def test_a_signal_after_the_verb_ends_the_process_by_itself():
    """Typer would give status 130 to any signal, even while a rank prints its error."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_at_signals()
        status_of(refused)
        assert {signal.getsignal(number) for number in usual} == {signal.SIG_DFL}
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
