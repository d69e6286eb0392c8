"""A model hub on this machine: as much of the hub's protocol as its client uses to read.

Files are served at a revision with entity tags and ranges, large ones through a redirect to a
second address, as the hub's own storage does. A repository may be gated, and a connection broken.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
LARGE = 1 << 16  # bytes from which on a file is stored elsewhere


@dataclass
class Repository:
    """One commit of a repository."""

    kind: str  # models or datasets
    name: str  # with the owner
    files: Mapping[str, bytes]
    branches: tuple[str, ...] = ("main",)  # names of the commit
    token: str | None = None  # what a reader must send, if it is gated
    commit: str = COMMIT

    def listed(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        entry = {"type": "file", "path": path, "size": len(content), "oid": tag(content)[:40]}
        if len(content) >= LARGE:
            entry["lfs"] = {"oid": tag(content), "size": len(content), "pointerSize": 130}
        return entry


def tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Hub:
    """The server's content, and what happened to it."""

    repositories: list[Repository]
    address: str = ""
    seen: list[str] = field(default_factory=list)  # method and path of every request
    breaks: int = 0  # how many answers of large files end half way from now on


@contextmanager
def serving(*repositories: Repository) -> Iterator[Hub]:
    """Serve repositories at ``Hub.address`` within this context."""
    hub = Hub(list(repositories))
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self.hub.seen.append(f"{self.command} {self.path}")
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if path == [""]:
            self.answer(200, b"a hub")
        elif path[0] == "storage":
            self.send_large(path[1])
        elif path[0] == "api":
            self.describe(path[1:])
        else:
            kind = "datasets" if path[0] == "datasets" else "models"
            self.resolve(kind, path[1:] if kind == "datasets" else path)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *words: Any) -> None:
        pass

    def repository(self, kind: str, name: str, revision: str) -> Repository | None:
        """Return a repository, or answer with the error that the hub has for this request."""
        commits = [r for r in self.hub.repositories if (r.kind, r.name) == (kind, name)]
        token = commits[0].token if commits else None
        if not commits:
            self.fail(401, "RepoNotFound", "Invalid username or password.")
        elif token and self.headers.get("Authorization") != f"Bearer {token}":
            said = f"Access to {kind[:-1]} {name} is restricted. You must be authenticated."
            self.fail(401, "GatedRepo", said)
        elif not (found := [r for r in commits if revision in (*r.branches, r.commit)]):
            self.fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return found[0]
        return None

    def describe(self, path: list[str]) -> None:
        """Answer api/KIND/OWNER/NAME[/revision/R | /tree/R/FOLDER]."""
        kind, name, rest = path[0], "/".join(path[1:3]), path[3:]
        what, revision = rest[0] if rest else "revision", rest[1] if len(rest) > 1 else "main"
        found = self.repository(kind, name, revision)
        if found is None:
            return
        if what == "revision":
            siblings = [{"rfilename": file} for file in found.files]
            gated = "manual" if found.token else False
            known = {"id": name, "sha": found.commit, "siblings": siblings, "private": False}
            self.answer_json(known | {"gated": gated, "tags": [], "downloads": 0, "likes": 0})
        elif what == "tree":
            folder = "/".join(rest[2:])
            deep = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower()
            inside = [f for f in found.files if not folder or f.startswith(f"{folder}/")]
            if folder and not inside:
                self.fail(404, "EntryNotFound", f"{folder} does not exist")
                return
            start = len(folder) + 1 if folder else 0
            direct = [f for f in inside if deep == "true" or "/" not in f[start:]]
            below = {f[: f.index("/", start)] for f in inside if "/" in f[start:]}
            about = {"type": "directory", "oid": "0" * 40, "size": 0}
            folders = [{**about, "path": one} for one in below]
            self.answer_json([*folders, *map(found.listed, direct)])
        else:
            self.fail(404, "EntryNotFound", what)

    def resolve(self, kind: str, path: list[str]) -> None:
        """Answer [datasets/]OWNER/NAME/resolve/R/FILE."""
        at = path.index("resolve") if "resolve" in path else -1
        if at < 0:
            self.fail(404, "EntryNotFound", "/".join(path))
            return
        name, file = "/".join(path[:at]), "/".join(path[at + 2 :])
        found = self.repository(kind, name, path[at + 1])
        if found is None:
            return
        if file not in found.files:
            self.fail(404, "EntryNotFound", f"{file} does not exist")
            return
        content = found.files[file]
        known = {"X-Repo-Commit": found.commit, "ETag": f'"{tag(content)[:40]}"'}
        if len(content) < LARGE:
            self.answer(200, content, known)
            return
        storage = self.hub.address.replace("127.0.0.1", "localhost") + "/storage"  # another host
        known |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{tag(content)}"'}
        self.answer(302, b"", known | {"Location": f"{storage}/{tag(content)}"})

    def send_large(self, digest: str) -> None:
        contents = (c for r in self.hub.repositories for c in r.files.values() if tag(c) == digest)
        content, known = next(contents), {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        status, part = 200, content
        if wanted := self.headers.get("Range"):
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            status, part = 206, content[first:]
            known["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        if self.hub.breaks and self.command == "GET":
            self.hub.breaks -= 1
            self.send(status, known | {"Content-Length": str(len(part))})
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return
        self.answer(status, part, known)

    def answer_json(self, content: Any) -> None:
        self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def fail(self, status: int, code: str, message: str) -> None:
        known = {"X-Error-Code": code, "X-Error-Message": message}
        self.answer(status, json.dumps({"error": message}).encode(), known)

    def answer(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send(status, {"Content-Length": str(len(content)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(content)

    def send(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
