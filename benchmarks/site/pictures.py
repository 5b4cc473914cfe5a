"""Pictures of the documentation site in Chromium: each page at a phone's and a desktop's width, light and dark.

    make site
    python benchmarks/site/pictures.py --out FOLDER [PAGE.html ...]

Each page becomes one picture with four frames. It needs Chromium or Chrome and no network.
"""

import argparse
import functools
import shutil
import subprocess
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SITE = Path(__file__).parents[2] / "build" / "site"
PAGES = ("index.html", "tutorials/first_run.html", "guides/memory.html", "reference/commands.html")
FRAMES = ((380, "default"), (380, "slate"), (1280, "default"), (1280, "slate"))
HEIGHT, GAP = 1000, 20
SHEET = """<!DOCTYPE html>
<style>body { margin: 0; display: flex; gap: 20px; background: gray } iframe { border: 0; flex: none }</style>
<script>
function paint(frame, scheme) { frame.contentDocument.body.setAttribute("data-md-color-scheme", scheme) }
</script>
"""


def picture(server: ThreadingHTTPServer, page: str, file: Path) -> None:
    """Write the picture of a page."""
    frames = "".join(
        f'<iframe src="{page}" width="{width}" height="{HEIGHT}" onload="paint(this, \'{scheme}\')"></iframe>'
        for width, scheme in FRAMES
    )
    sheet = SITE / "sheet.html"
    sheet.write_text(SHEET + frames)
    size = f"{sum(width for width, _ in FRAMES) + GAP * (len(FRAMES) - 1)},{HEIGHT}"
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    flags = ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars", f"window-size={size}", f"screenshot={file}")
    address = f"http://127.0.0.1:{server.server_port}/sheet.html"
    try:
        with tempfile.TemporaryDirectory() as profile:
            arguments = [f"--{flag}" for flag in (*flags, f"user-data-dir={profile}", "virtual-time-budget=5000")]
            subprocess.run([browser, *arguments, address], check=True, capture_output=True, timeout=60)
    finally:
        sheet.unlink()


class _SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", default=PAGES, metavar="PAGE")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_SilentHandler, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for page in options.pages:
            file = (options.out / page.removesuffix(".html").replace("/", "_")).with_suffix(".png")
            picture(server, page, file.absolute())
            print(file)
        server.shutdown()


if __name__ == "__main__":
    main()
