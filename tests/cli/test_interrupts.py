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


def interrupted(module, handler="default_int_handler", number=signal.SIGINT, **environment):
    code = CODE.format(module=module, handler=handler, number=int(number))
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


@pytest.mark.parametrize("module", ["typer", "dpft.cli.ls"])
def test_ctrl_c_during_an_import_is_a_sentence(module):
    done = interrupted(module)
    assert done.returncode == 130
    assert done.stderr == "dpft: stopped; nothing was started, the same command starts over\n"


def test_sigterm_is_a_sentence_too_and_of_several_ranks_the_first_says_it():
    done = interrupted("typer", "SIG_DFL", signal.SIGTERM)
    assert (done.returncode, done.stderr.count("dpft: stopped")) == (143, 1)
    done = interrupted("typer", "SIG_DFL", signal.SIGTERM, RANK="1")
    assert (done.returncode, done.stderr) == (143, "")


def test_a_library_that_trips_over_an_interrupt_does_not_hide_it(capsys):
    """As omegaconf does, which is interrupted before it has set what it puts back."""

    def verb():
        try:
            raise Stopped(signal.SIGTERM)
        finally:
            print(never)  # noqa: F821

    with pytest.raises(SystemExit) as ended:
        guarded(verb, "train")()
    assert ended.value.code == 128 + signal.SIGTERM
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

    with pytest.raises(SystemExit):
        guarded(verb, "train", "resumes" if resumes else "")()
    assert capsys.readouterr().err.startswith(f"dpft: stopped; {said}")


def test_a_signal_while_an_error_is_printed_ends_by_that_signal(monkeypatch, capsys):
    """Of two ranks one is killed, and torchrun stops the other while that prints its error."""

    def verb():
        raise ConfigError("rank 1 of 2 stopped")

    def interrupted(said):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr("dpft.cli.guard.refuse", interrupted)
    with pytest.raises(SystemExit) as ended:
        guarded(verb, "train", "resumes")()
    assert ended.value.code == 143


def test_a_signal_after_the_verb_ends_the_process_by_itself():
    """Typer would give status 130 to any signal, even while a rank prints its error."""

    def verb():
        raise ConfigError("rank 1 of 2 stopped")

    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_at_signals()
        with pytest.raises(SystemExit):
            guarded(verb, "train", "resumes")()
        assert {signal.getsignal(number) for number in usual} == {signal.SIG_DFL}
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
