"""Whether the model hub can be reached, asked once and before its client is imported."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit

_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def stay_offline_if_unreachable() -> None:
    """Put the hub's client in offline mode where its host has no address.

    It would otherwise repeat every request for half a minute before it gave up. Behind a proxy the
    address is the proxy's business, so nothing is decided there. What the client has cached is
    found either way.
    """
    if "HF_HUB_OFFLINE" in os.environ or any(name in os.environ for name in _PROXIES):
        return
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"
