"""When the tuner has seen enough of one size."""

import random
import statistics

import pytest

from tracehook.tuning.clock import Interval, is_decided, of_median

MARGIN = 0.005


@pytest.mark.parametrize("samples", [30, 100, 1000])
def test_the_true_median_lies_inside_in_about_99_of_100_cases(samples: int) -> None:
    """Of a skewed distribution, as times have it: whose median is 1."""
    numbers = random.Random(samples)
    inside, trials = 0, 2000 if samples < 1000 else 500
    for _ in range(trials):
        found = of_median([numbers.lognormvariate(0, 0.3) for _ in range(samples)])
        assert found.low <= found.median <= found.high
        inside += found.low <= 1 <= found.high
    assert 0.98 <= inside / trials <= 0.999


def test_few_samples_give_their_whole_range() -> None:
    """An interval cannot be wider than that."""
    assert of_median([3.0]) == Interval(3.0, 3.0, 3.0)
    assert of_median([1.0, 2.0, 9.0]) == Interval(1.0, 2.0, 9.0)


@pytest.mark.parametrize(
    ("gain", "decided"),
    [
        (Interval(1.10, 1.15, 1.20), True),  # symmetric memory is faster
        (Interval(0.80, 0.85, 0.90), True),  # plain memory is
        (Interval(0.998, 1.000, 1.002), True),  # a tie: no choice costs anything
        (Interval(0.995, 1.007, 1.030), True),  # symmetric is chosen, and loses half a percent at most
        (Interval(0.990, 1.000, 1.020), False),  # plain is chosen, and symmetric may be 2 % faster
        (Interval(0.980, 1.010, 1.040), False),  # symmetric is chosen, and plain may be 2 % faster
        (Interval(0.950, 0.985, 1.015), False),  # the table had this for 32 KiB, and was wrong
    ],
)
def test_a_size_is_decided_when_the_wrong_choice_costs_little(gain: Interval, *, decided: bool) -> None:
    """Less than a percent, wherever in the interval the truth lies."""
    assert is_decided(gain, MARGIN) is decided


def test_more_samples_decide_in_the_end() -> None:
    """Also where both kinds of memory are equally fast."""
    numbers = random.Random(1)
    samples = [numbers.gauss(1.0, 0.05) for _ in range(20)]
    assert not is_decided(of_median(samples), MARGIN)
    while not is_decided(of_median(samples), MARGIN):
        samples += [numbers.gauss(1.0, 0.05) for _ in range(100)]
        assert len(samples) < 5000
    assert abs(statistics.median(samples) - 1) < 0.01
