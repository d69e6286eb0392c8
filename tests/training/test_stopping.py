"""Signals while steps are taken."""

import os
import signal
from contextlib import nullcontext

import pytest

from dpft.training.stopping import Stopping


class UsualError(Exception):
    """The process's usual handler ran."""


@pytest.fixture(autouse=True)
def usual():
    """A handler of the process's own, for both signals."""

    def handler(number, frame):
        raise UsualError(number)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, theirs in before.items():
        signal.signal(number, theirs)


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("agreed", [True, False])
def test_sigterm_twice_is_heard_once(agreed):
    """Slurm tells every process of a job, and torchrun its ranks again: the step is finished."""
    stopping, finished = Stopping(agreed), []
    with stopping.heard():
        try:
            with nullcontext() if agreed else stopping.moving():
                send(signal.SIGTERM)
                send(signal.SIGTERM)
                finished.append("the step")
        except UsualError:
            assert not agreed  # one process stops as soon as its weights are whole
    assert finished
    assert stopping.asked == signal.SIGTERM


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_behind_another_signal_ends_at_once(first):
    stopping = Stopping(agreed=True)
    with stopping.heard():
        send(first)
        with pytest.raises(UsualError):
            send(signal.SIGINT)


def test_amid_the_sum_of_a_step_one_process_stops():
    stopping = Stopping(agreed=False)
    with stopping.heard(), pytest.raises(UsualError):
        send(signal.SIGTERM)
