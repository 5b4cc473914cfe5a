import re

from shoestring.answers.renderers.page import svg


def test_drawing_is_deterministic_and_labeled():
    def paint(axes):
        axes.plot([1, 2, 3], [3, 1, 2], color=svg.BLUE, marker="o", label="<b>$x$ 字</b>")
        axes.legend()

    first = svg.draw('the "label"', paint, width=300, height=200)
    assert first == svg.draw('the "label"', paint, width=300, height=200)
    assert first.startswith('<svg viewBox="0 0 300 200" role="img" aria-label="the &quot;label&quot;">')
    assert ">&lt;b&gt;$x$ 字&lt;/b&gt;</text>" in first


def test_every_color_is_a_css_property():
    def paint(axes):
        axes.plot([1, 2], color=svg.VERMILLION)
        axes.bar([1], [1], color=svg.GREEN, edgecolor=svg.CARD)
        axes.text(1, 1, "text")

    drawing = svg.draw("colors", paint, width=300, height=200)
    assert re.findall(r"#[0-9a-f]{6}\b", drawing) == []
    assert {"vermillion", "green", "card", "ink", "muted", "line"} <= set(re.findall(r"var\(--(\w+)\)", drawing))


def test_two_drawings_share_no_id():
    def paint(axes):
        axes.plot([1, 2, 3], color=svg.BLUE, marker="o")

    ids = [set(re.findall(r'id="([^"]*)"', svg.draw(label, paint, width=300, height=200))) for label in ("a", "b")]
    assert ids[0] and not ids[0] & ids[1]


def test_matplotlib_settings_are_unchanged():
    import matplotlib

    before = dict(matplotlib.rcParams)
    svg.draw("x", lambda axes: None, width=100, height=100)
    assert dict(matplotlib.rcParams) == before
