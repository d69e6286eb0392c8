"""One request decides if the hub is asked; downloads are used without it."""

import os
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from dpft.config import offline

WAIT = 1.0


class Handler(BaseHTTPRequestHandler):
    """A hub that has no page, and a proxy that makes no tunnel: every method is refused."""

    def log_message(self, *_):
        pass


@contextmanager
def port_that_is(kind):
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        if kind == "answering":
            thread.start()
        if kind == "closed":
            server.server_close()
        yield server.server_port
        if kind == "answering":
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("kind", "name", "reached"),
    [
        ("answering", "HF_ENDPOINT", True),
        ("silent", "HF_ENDPOINT", False),
        ("answering", "HTTPS_PROXY", False),
        ("closed", "HF_ENDPOINT", False),
        ("closed", "ALL_PROXY", True),  # left to the hub's client
    ],
)
def test_one_request_decides_whether_the_hub_is_asked(monkeypatch, kind, name, reached):
    for other in [*os.environ]:
        if other.lower().endswith("_proxy") or other in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(other)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # restored afterwards, whatever is decided
    monkeypatch.setattr(offline, "WAIT", WAIT)
    with port_that_is(kind) as port:
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        began = time.monotonic()
        offline.stay_offline_if_unreachable()
        assert time.monotonic() - began < WAIT + 2
    assert os.environ["HF_HUB_OFFLINE"] == ("0" if reached else "1")
    assert offline.is_offline() is not reached
    # After the decision, the question is not asked again.
    monkeypatch.setattr(offline, "hub_answers", lambda: pytest.fail("asked again"))
    offline.stay_offline_if_unreachable()
