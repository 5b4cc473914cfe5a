import pytest

from tests.docs import renewing
from tests.docs.renewing import renewed

PRINTED = """temporal fits on kaggle-t4
memory       300 MiB at the peak, between 260 MiB and 500 MiB
             CUDA context   141 MiB  ███
time         3.1 ms per update
             2 others        22 MiB  █
"""


def test_lines_get_the_numbers_that_were_printed():
    shown = "...\nmemory       9 MiB at the peak, between 1 MiB and 1.2 GiB\n...\n             2 others  5 MiB ███\n..."
    lines = PRINTED.splitlines()
    assert renewed(shown, PRINTED) == (f"...\n{lines[1]}\n...\n{lines[4]}\n...", [])


@pytest.mark.parametrize("line", ["memory       9 MiB", "time         3 s in an update", "temporal fits on kaggl…"])
def test_lines_that_were_not_printed_stay(line):
    assert renewed(line, PRINTED) == (line, [line])


def test_a_page_is_written_anew(monkeypatch, tmp_path):
    (tmp_path / "guides").mkdir()
    page = tmp_path / "guides" / "mine.md"
    page.write_text(
        "# Mine\n```console\n$ shoestring plan mine\n...\ntime         9 ms per update\n```\n9 ms per update\n"
    )
    monkeypatch.setattr(renewing, "DOCS", tmp_path)
    monkeypatch.setattr(
        renewing, "execute", lambda name, folder, check: check("...\ntime         9 ms per update", PRINTED)
    )
    assert renewing.renew("guides/mine") == []
    assert page.read_text().splitlines()[4:] == ["time         3.1 ms per update", "```", "9 ms per update"]
