from datetime import UTC, datetime

import pytest

from shoestring.base.units import (
    GIB,
    KIB,
    MIB,
    bytes_text,
    count_text,
    parse_bytes,
    parse_seconds,
    parse_until,
    seconds_text,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (KIB, "1.00 KiB"),
        (234 * MIB, "234 MiB"),
        (int(14.5625 * GIB), "14.56 GiB"),
        (-3 * GIB, "-3.00 GiB"),
    ],
)
def test_bytes_text_chooses_the_unit(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0032, "3.2 ms"), (4.12, "4.1 s"), (125, "2 min 05 s"), (3599.7, "1 h 00 min"), (3840, "1 h 04 min")],
)
def test_seconds_text_chooses_the_unit(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("20 min", 1200), ("1.5h", 5400), (" 2 h ", 7200)]
)
def test_parse_seconds(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "0", "-3s", "3x", "1e3", "nan", "12:00", "9" * 400, "99999999999999h"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(ValueError, match=r"write 90s|longer than a century"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("15GB", 15 * 10**9), ("500MB", 5 * 10**8), ("300KB", 300_000), ("2KiB", 2048), (" 1.5 GiB ", 3 * GIB // 2)],
)
def test_parse_bytes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "15", "0GB", "-1GB", "15gigs", "1K", "9" * 400 + "GB", "99999999TB"])
def test_invalid_sizes_are_refused(text):
    with pytest.raises(ValueError, match=r"write 15GB|more than any disk"):
        parse_bytes(text)


def test_count_text_has_thousands_separators():
    assert count_text(625726) == "625,726"


NOW = datetime(2026, 11, 27, 18, 30, tzinfo=UTC)  # a Friday


@pytest.mark.parametrize(
    ("text", "hours"),
    [("sunday", 53.5), ("Friday", 5.5), ("thursday", 149.5), ("2026-11-28", 29.5), ("3d", 72), ("1.5h", 1.5)],
)
def test_a_time_until_which_something_is_done(text, hours):
    assert parse_until(text, NOW) == pytest.approx(hours * 3600)


@pytest.mark.parametrize(
    ("text", "problem"), [("2026-11-26", "in the past"), ("someday", "is not a time"), ("2026-13-01", "month")]
)
def test_other_times_are_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_until(text, NOW)
