"""One request decides if the hub is asked; downloads are used without it."""

import os
import socket
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
def answering():
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def silent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextmanager
def closed():
    with silent() as port:
        pass
    yield port


@pytest.mark.parametrize(
    ("server", "names", "reached"),
    [
        (answering, ["HF_ENDPOINT"], True),
        (silent, ["HF_ENDPOINT"], False),
        (answering, ["HTTPS_PROXY"], False),
        (closed, ["HF_ENDPOINT"], False),
        (closed, ["ALL_PROXY"], True),  # left to the hub's client
    ],
)
def test_one_request_decides_whether_the_hub_is_asked(monkeypatch, server, names, reached):
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # restored afterwards, whatever is decided
    monkeypatch.setattr(offline, "WAIT", WAIT)
    with server() as port:
        for name in names:
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        began = time.monotonic()
        offline.stay_offline_if_unreachable()
        assert time.monotonic() - began < WAIT + 2
    assert os.environ["HF_HUB_OFFLINE"] == ("0" if reached else "1")
    assert offline.is_offline() is not reached
    # After the decision, the question is not asked again.
    monkeypatch.setattr(offline, "hub_answers", lambda: pytest.fail("asked again"))
    offline.stay_offline_if_unreachable()
