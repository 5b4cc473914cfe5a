import numpy as np

from shoestring.recipes.temporal.features import features
from shoestring.recipes.temporal.table import CLIP, standardised, tabulate

from .market import candles, otherwise_from, several


def test_the_warm_up_is_dropped_for_every_symbol() -> None:
    one, two = candles(300, symbol="A"), candles(200, symbol="B", seed=1)
    table = tabulate(several(one, two))
    warm = 3 * 24  # three days until a third has closed
    assert np.bincount(table.symbol).tolist() == [300 - warm, 200 - warm]
    assert np.isfinite(table.features).all()
    assert (table.close == np.concatenate([one["close"][warm:], two["close"][warm:]])).all()
    assert (table.features[228:] == features(two, "4 hours", "1 day")[warm:].to_numpy(np.float32)).all()


def test_symbols_share_the_calendar_and_not_the_row_numbers() -> None:
    late = candles(300, symbol="B").assign(time=lambda bars: bars["time"] + np.timedelta64(100, "h"))
    table = tabulate(several(candles(300, symbol="A"), late))
    first, second = table.moment[table.symbol == 0], table.moment[table.symbol == 1]
    assert first[0] == 0 and (np.diff(first) == 1).all()
    # B starts 100 hours later but not at midnight, so that its third day closes, for once, 4 hours sooner
    assert second[0] == 96 and second[-1] == table.moments - 1


def test_the_training_part_is_standardised() -> None:
    table = tabulate(candles(600))
    scaled = standardised(table, before=300)[table.moment < 300]
    inside = (np.abs(scaled) < CLIP).all(axis=0)
    assert inside.sum() > 20
    np.testing.assert_allclose(scaled[:, inside].mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(scaled[:, inside].std(axis=0), 1, atol=1e-4)


def test_the_standard_does_not_know_later_bars() -> None:
    bars = candles(600)
    warm = 72
    table, other = tabulate(bars), tabulate(otherwise_from(bars, warm + 300))
    assert (standardised(table, before=300)[:300] == standardised(other, before=300)[:300]).all()
    assert (standardised(table, before=300)[300:] != standardised(other, before=300)[300:]).any()


def test_a_feature_that_never_changes_stays_small() -> None:
    table = tabulate(candles(600).assign(volume=0.0))
    assert (standardised(table, before=300)[:, 13] == 0).all()  # volume20


def test_an_outlier_is_clipped() -> None:
    bars = candles(600)
    bars.loc[500, "high"] = 1e6
    assert np.abs(standardised(tabulate(bars), before=300)).max() == CLIP
