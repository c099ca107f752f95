"""Medians, paired ratios and tables of the benchmarks."""

from __future__ import annotations

import pytest

from bench.summary import Summary, milliseconds, paired_ratio, phases, spread, table, times


def test_summary_is_the_median_and_both_ends() -> None:
    assert Summary.of([30.0, 10.0, 21.0, 11.0]) == Summary(16.0, 10.0, 30.0, 4)


def test_nothing_measured_has_no_summary() -> None:
    assert Summary.of([]) is None
    assert milliseconds(None) == spread(None) == times(None) == "-"


def test_phases_keep_their_order_and_count_only_the_runs_that_have_them() -> None:
    found = phases([{"pause": 5.0, "usable": 9.0}, {"pause": 7.0, "usable": 11.0, "first_frame": 80.0}])
    assert list(found) == ["pause", "usable", "first_frame"]
    assert found["pause"] == Summary(6.0, 5.0, 7.0, 2)
    assert found["first_frame"].count == 1


def test_ratio_compares_within_each_round() -> None:
    # The machine became ten times slower in the second round: the ratio of each round is 4, whatever the medians say.
    ours = [{"usable": 10.0}, {"usable": 100.0}, {"usable": 10.0}]
    theirs = [{"usable": 40.0}, {"usable": 400.0}, {"usable": 40.0}]
    assert paired_ratio(ours, theirs, "usable") == Summary(4.0, 4.0, 4.0, 3)


def test_ratio_ignores_rounds_in_which_either_is_missing_or_ours_is_zero() -> None:
    ours = [{"pause": 2.0}, {}, {"pause": 0.0}, {"pause": 2.0}]
    theirs = [{"pause": 6.0}, {"pause": 6.0}, {"pause": 6.0}]
    assert paired_ratio(ours, theirs, "pause") == Summary(3.0, 3.0, 3.0, 1)
    assert paired_ratio(ours, [{"usable": 1.0}], "pause") is None


@pytest.mark.parametrize(("value", "expected"), [(0.94, "0.9"), (12.34, "12.3"), (99.94, "99.9"), (100.4, "100"), (2345.6, "2346")])
def test_milliseconds_show_no_more_digits_than_mean_something(value: float, expected: str) -> None:
    assert milliseconds(Summary(value, value, value, 1)) == expected


def test_spread_and_times() -> None:
    assert spread(Summary(12.34, 11.0, 119.8, 5)) == "12.3 (11.0-120)"
    assert times(Summary(5.234, 5.0, 6.0, 3)) == "5.23x"
    assert times(Summary(12.4, 5.0, 20.0, 3)) == "12x"


def test_table_aligns_names_left_and_numbers_right() -> None:
    assert table(["what", "ms"], [["one", "5.0"], ["a longer one", "123"]]) == (
        "what           ms\n------------  ---\none           5.0\na longer one  123"
    )


def test_a_row_of_the_wrong_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="every row"):
        table(["a", "b"], [["only one"]])
