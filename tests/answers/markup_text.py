"""The text of a display, after checks that hold for all of them."""

from html.parser import HTMLParser

_ALLOWED = {"style", "title", "open"}
_DRAWING = {"svg", "path", "polyline", "polygon"}


class Reader(HTMLParser):
    """Checks that tags are closed and self-contained, and collects the text."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "style", "link", "img", "iframe", "a", "text")
        for name, value in attrs:
            assert name in _ALLOWED or tag in _DRAWING, (tag, name)
            assert not name.startswith("on") and "url(" not in value and "http" not in value.replace("https://", "")
        if tag != "br":
            self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        assert "svg" not in self.open, "text in a drawing remains in disorder where SVG is removed"
        self.texts.append(data)


def read(html):
    """Return the texts of a display in their order."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    return [text for text in reader.texts if text.strip()]


def flat(html):
    """Return the text of a display as one string."""
    return " ".join(" ".join(read(html)).split())
