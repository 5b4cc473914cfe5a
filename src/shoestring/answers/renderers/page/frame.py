"""What is around the content of a page: one self-contained HTML document."""

from importlib.resources import files

from shoestring.answers.renderers.markup import Markup, element, join

BEGINNING = "<!DOCTYPE html>\n"

# The browser itself refuses to fetch resources and to run scripts.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def html(title: str, body: Markup, *, refresh_seconds: int | None = None) -> Markup:
    """Return the document with this `body`, which the browser loads again every `refresh_seconds`."""
    style = files("shoestring.answers.renderers.page").joinpath("page.css").read_text(encoding="utf-8")
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else ""),
            Markup('<link rel="icon" href="data:,">'),
            element("title", title),
            element("style", Markup(style)),
        ]
    )
    page = join([element("head", head), element("body", body)])
    return join([Markup(BEGINNING), element("html", page, lang="en")])
