"""Checks of options: the bounds, and that the message names the option."""

import pytest
from ace.options import check_positive, check_temperature


def test_numbers_from_1_on_pass_and_none_only_where_it_may():
    check_positive(rounds=1, budget=10**9)
    check_positive(optional=True, retrieve=None, every=1)
    with pytest.raises(ValueError, match=r"^budget must be at least 1, got 0$"):
        check_positive(rounds=1, budget=0)
    with pytest.raises(ValueError, match=r"^every must be at least 1, got -3$"):
        check_positive(optional=True, retrieve=None, every=-3)
    with pytest.raises(ValueError, match=r"^window must be at least 1, got None$"):
        check_positive(window=None)


@pytest.mark.parametrize("temperature", [-0.1, float("inf"), float("nan")])
def test_a_temperature_is_finite_and_not_negative(temperature):
    check_temperature(0.0)
    check_temperature(2.0)
    with pytest.raises(ValueError, match=r"^temperature must be a finite number >= 0, got "):
        check_temperature(temperature)
