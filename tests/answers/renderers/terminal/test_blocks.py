from shoestring.answers.renderers.terminal.blocks import chart, sparkline


def drawn(values, dots=None, height=2):
    lines = chart(values, dots or {}, height=height, labels=4, style="", dot_style="")
    return [line.plain for line in lines]


def test_bars_are_in_eighths_of_a_line():
    assert drawn([0.0, 7.0, 15.0]) == ["  15   █", "   0 ▁██"]
    assert drawn([0.0, 3.0, 7.0], height=1) == ["   0 ▁▄█"]


def test_dots_are_drawn_over_bars_and_widen_the_scale():
    assert drawn([0.0, 7.0], {0: 15.0}) == ["  15 ● ", "   0 ▁█"]


def test_equal_values_are_in_the_middle():
    assert drawn([2.0, 2.0]) == ["   2 ▁▁", "   2 ██"]


def test_scale_of_large_ratios_is_logarithmic():
    assert drawn([100.0, 10.0, 1.0], height=3) == [" 100 █  ", "  10 █▅ ", "   1 ██▁"]


def test_sparkline():
    assert sparkline([0, 2, 7]) == "▁▃█"
    assert sparkline([1, 1]) == "▅▅"
