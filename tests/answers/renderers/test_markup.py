from shoestring.answers.renderers.markup import Markup, element, join, table


def test_text_is_escaped_once_and_markup_never():
    assert element("p", "a < b & c") == "<p>a &lt; b &amp; c</p>"
    assert element("p", element("b", "a<b")) == "<p><b>a&lt;b</b></p>"
    assert element("p", Markup("<i>")) == "<p><i></p>"
    assert element("p", ["<", [Markup("<br>"), '"']]) == "<p>&lt;<br>&quot;</p>"


def test_attributes_are_escaped_and_named_as_in_html():
    assert element("p", class_="a", aria_label='"<') == '<p class="a" aria-label="&quot;&lt;"></p>'


def test_joining_markup_with_text_escapes_the_text():
    assert join([Markup("<b>"), "<b>"]) == "<b>&lt;b&gt;"
    assert isinstance(join(["a"]), Markup)


def test_numeric_columns_are_right_aligned():
    assert '<td>a</td><td class="number">1</td>' in table(["x", "y"], [["a", "1"]], ["", "number"])
