import numpy as np

from shoestring_recipes.cloud.scale import to_backscatter, to_reflectance


def test_counts_are_converted_to_reflectance() -> None:
    counts = np.array([0, 2500, 10_000, 65_535], dtype=np.uint16)
    np.testing.assert_array_equal(to_reflectance(counts), np.float32([0, 0.25, 1, 1]))
    np.testing.assert_array_equal(to_reflectance(np.array([-5], dtype=np.int16)), np.float32([0]))
    assert to_reflectance(counts).dtype == np.float32


def test_each_polarisation_has_its_own_lower_bound() -> None:
    decibels = np.array([[[-40, -25, -12.5, 0, 5]], [[-40, -32.5, -16.25, 0, 5]]], dtype=np.float32)
    np.testing.assert_allclose(to_backscatter(decibels), [[[0, 0, 0.5, 1, 1]]] * 2)
    assert to_backscatter(decibels).dtype == np.float32
