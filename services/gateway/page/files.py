"""The page's files, read once from the package."""

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class File:
    """A file to serve."""

    body: bytes
    media_type: str
    etag: str


def page_files() -> dict[str, File]:
    """The files of the page by their names. Raises FileNotFoundError where the package lacks
    them."""
    found = {}
    for entry in files("services.gateway").joinpath("ui").iterdir():
        suffix = entry.name[entry.name.rfind(".") :]
        if suffix in _TYPES:
            body = entry.read_bytes()
            found[entry.name] = File(body, _TYPES[suffix], f'"{sha256(body).hexdigest()[:32]}"')
    if INDEX not in found:
        raise FileNotFoundError("services/gateway/ui/index.html is not installed")
    return found
