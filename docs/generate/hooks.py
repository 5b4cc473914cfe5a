"""Hooks of mkdocs: the version in the footer, links out of the site, what the search finds, and a script that is not
loaded from elsewhere."""

import posixpath
import re
from typing import Any

from shoestring.version import __version__

_WORKER_URL, _WORKER_FILE = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
_SEARCH = {"guides/troubleshooting.md": {"boost": 1.3}}
_SEARCH |= {page: {"exclude": True} for page in ("claims.md", "design.md", "log.md")}
"""Whoever searches for the words of an error wants its explanation, and not what developers wrote down about it."""
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Put the version of the code into the footer of every page."""
    config.copyright = f"Shoestring {__version__}"
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links to files of the repository outside of `docs/`, which are not in the site, by their paths.

    Also say how the search treats the page.
    """
    if page.file.src_uri in _SEARCH:
        page.meta["search"] = _SEARCH[page.file.src_uri]
    folder = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        target = match["target"]
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", folder, target.partition("#")[0]))
        if path.startswith("docs/"):
            return match[0]
        text = match["text"].strip("`")
        return f"`{path}`" if text in (path, posixpath.basename(path)) else f"{match['text']} (`{path}`)"

    return _LINK.sub(replace, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Load the script that the search needs on pages from the disk from the site itself."""
    folder = posixpath.dirname(page.file.dest_uri)
    return output.replace(_WORKER_URL, posixpath.relpath(_WORKER_FILE, folder or "."))


def on_post_template(output: str, *, template_name: str, **_: Any) -> str:
    """Do the same for pages without a source, such as 404.html."""
    return output.replace(_WORKER_URL, _WORKER_FILE) if template_name.endswith(".html") else output
