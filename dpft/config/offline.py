"""Decide whether the model hub can be reached, before its client is imported.

The decision is stored in ``HF_HUB_OFFLINE``, which the hub's client, transformers and datasets read
on import, and which child processes inherit.
"""

import os
from pathlib import Path
from threading import Thread

WAIT = 2.5
"""Seconds in which the hub must answer. Its client would repeat each request for 90 seconds."""
_DECIDED = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def stay_offline_if_unreachable() -> None:
    """Put the hub's client in offline mode unless the hub answers; what is downloaded is used.

    A user who sets ``HF_HUB_OFFLINE=0`` has the client ask, however long it takes.
    """
    if not any(os.environ.get(name) for name in _DECIDED):
        os.environ["HF_HUB_OFFLINE"] = "0" if hub_answers() else "1"


def hub_answers() -> bool:
    """Return whether the hub answers within `WAIT` seconds."""
    answers: list[bool] = []
    # In a thread, since nothing else bounds the time that a name server takes.
    thread = Thread(target=lambda: answers.append(_answers(endpoint())), daemon=True)
    thread.start()
    thread.join(WAIT)
    return answers == [True]


def is_offline() -> bool:
    """Return whether the hub does not answer, or the user forbids asking it."""
    said = next(filter(None, map(os.environ.get, _DECIDED)), "")
    return said.lower() in ("1", "true", "yes", "on")


def endpoint() -> str:
    """Return the address of the hub, or of its mirror."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def is_downloaded(model: str) -> bool:
    """Return whether files of a model of the hub are on this machine."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE, f"models--{model.replace('/', '--')}").exists()


def refusal(error: BaseException, kind: str, name: str) -> str:
    """Return in words why the hub did not give one of its ``models`` or ``datasets``.

    Args:
        error: of the hub's client, or of a library that used it.
        kind: ``models`` or ``datasets``.
        name: owner and name.
    """
    page = f"{endpoint()}/{'' if kind == 'models' else 'datasets/'}{name}"
    login = "log in by hf auth login, or set HF_TOKEN"
    cause: BaseException | None = error
    while cause is not None:
        kind_of_error = type(cause).__name__
        # `datasets` makes one error of an absent data set and of an absent revision.
        if kind_of_error == "RevisionNotFoundError" or str(cause).startswith("Revision "):
            return f"{page} has no such revision"
        # `datasets` says in its message alone that a data set is gated.
        if kind_of_error == "GatedRepoError" or "gated dataset" in str(cause):
            return f"access is restricted: accept the terms at {page}, and {login}"
        if kind_of_error in ("RepositoryNotFoundError", "DatasetNotFoundError"):
            return f"the hub has no {page}, or it is private: then {login}"
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _answers(url: str) -> bool:
    """Return whether a server answers a request, through the proxies of the environment."""
    import ssl
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, getproxies, urlopen

    if "all" in getproxies():  # the hub's client takes it, urllib does not
        return True
    try:
        urlopen(Request(url, method="HEAD"), timeout=WAIT).close()
    except (HTTPError, ValueError):  # an answer; or no address, which the client reports
        return True
    except (OSError, HTTPException) as error:
        # The client has other certificates.
        return isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError)
    return True
