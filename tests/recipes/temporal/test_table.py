import numpy as np

from shoestring_recipes.temporal.features import compute_features
from shoestring_recipes.temporal.preprocessing import CLIP, fit
from shoestring_recipes.temporal.preprocessing import standardize as standardize_with
from shoestring_recipes.temporal.table import Table, tabulate

from .market import change_future, concatenate, random_bars


def standardize(table: Table, *, before: int) -> np.ndarray:
    return standardize_with(table, fit(table, ("4 hours", "1 day"), before))


def test_the_warm_up_is_dropped_for_every_symbol() -> None:
    first, second = random_bars(300, symbol="A"), random_bars(200, symbol="B", seed=1)
    table = tabulate(concatenate(first, second))
    warm_up = 3 * 24  # bars until the third day has closed
    assert np.bincount(table.symbol).tolist() == [300 - warm_up, 200 - warm_up]
    assert np.isfinite(table.features).all()
    assert (table.close == np.concatenate([first["close"][warm_up:], second["close"][warm_up:]])).all()
    assert (table.features[228:] == compute_features(second, "4 hours", "1 day")[warm_up:].to_numpy(np.float32)).all()


def test_moments_are_shared_by_all_symbols() -> None:
    late = random_bars(300, symbol="B").assign(time=lambda bars: bars["time"] + np.timedelta64(100, "h"))
    table = tabulate(concatenate(random_bars(300, symbol="A"), late))
    first, second = table.moment[table.symbol == 0], table.moment[table.symbol == 1]
    assert first[0] == 0 and (np.diff(first) == 1).all()
    # B starts 100 hours later and not at midnight, so its third day closes 4 hours sooner relative to its start.
    assert second[0] == 96 and second[-1] == table.moments - 1


def test_the_training_part_is_standardize() -> None:
    table = tabulate(random_bars(600))
    scaled = standardize(table, before=300)[table.moment < 300]
    unclipped = (np.abs(scaled) < CLIP).all(axis=0)
    assert unclipped.sum() > 20
    np.testing.assert_allclose(scaled[:, unclipped].mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(scaled[:, unclipped].std(axis=0), 1, atol=1e-4)


def test_the_standard_does_not_know_later_bars() -> None:
    bars = random_bars(600)
    warm_up = 72
    table, changed = tabulate(bars), tabulate(change_future(bars, warm_up + 300))
    assert (standardize(table, before=300)[:300] == standardize(changed, before=300)[:300]).all()
    assert (standardize(table, before=300)[300:] != standardize(changed, before=300)[300:]).any()


def test_a_constant_feature_stays_zero() -> None:
    table = tabulate(random_bars(600).assign(volume=0.0))
    assert (standardize(table, before=300)[:, 13] == 0).all()  # volume20


def test_an_outlier_is_clipped() -> None:
    bars = random_bars(600)
    bars.loc[500, "high"] = 1e6
    assert np.abs(standardize(tabulate(bars), before=300)).max() == CLIP
