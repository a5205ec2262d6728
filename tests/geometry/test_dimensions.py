"""Rows and columns through views, joins, cuts and broadcasting."""

import pytest

from ien.geometry.dimensions import cut, dimension, is_constant, join, length, merge, places, regroup

H, W = dimension("H", 6), dimension("W", 6)
B, EQUAL, TOKEN = dimension("", 4), dimension("=", 4), dimension("", 1)
HW = ((("H", 6), ("W", 6)),)
WITH_TOKEN = ((), *HW)  # a class token, then the places


@pytest.mark.parametrize(
    "dims, shape, expected",
    [
        ([B, H, W], [4, 36], [B, HW]),
        ([HW], [6, 6], [H, W]),
        ([H, B], [6, 2, 2], [H, dimension("", 2), dimension("", 2)]),
        ([EQUAL, H], [24], [((("=", 4), ("H", 6)),)]),
        ([WITH_TOKEN, B], [37, 4], [WITH_TOKEN, B]),
        ([(((), *B)), H], [5, 6], [dimension("", 5), H]),  # segments without places are one
        ([H], [2, 3], None),
        ([B, H], [8, 3], None),
        ([B], [2, 3], None),
        ([B], [2, 4], None),
        ([B], [2], None),
    ],
)
def test_a_view_regroups_dimensions_unless_it_splits_rows(dims, shape, expected) -> None:
    assert regroup(dims, shape) == expected


def test_tokens_flattened_with_the_batch_come_apart_again() -> None:
    flat = regroup([B, WITH_TOKEN], [4 * 37])
    assert flat is not None and length(flat[0]) == 4 * 37 and places(flat) == {"H", "W"}
    assert regroup(flat, [4, 37]) == [B, WITH_TOKEN]


@pytest.mark.parametrize(
    "dims, expected",
    [([TOKEN, HW], WITH_TOKEN), ([B, B], dimension("", 8)), ([H, H], None), ([TOKEN, H], None)],
)
def test_a_join_keeps_rows_and_columns_together(dims, expected) -> None:
    assert join(dims) == expected


@pytest.mark.parametrize(
    "d, bounds, expected",
    [
        (WITH_TOKEN, (1, 37), HW),
        (WITH_TOKEN, (0, 1), TOKEN),
        (WITH_TOKEN, (0, 20), None),
        ((*dimension("", 3), *HW), (1, 39), (*dimension("", 2), *HW)),
        ((*dimension("=", 3), *HW), (1, 39), (*dimension("=", 2), *HW)),
        ((*B, *B), (1, 7), dimension("", 6)),
    ],
)
def test_a_cut_takes_whole_maps(d, bounds, expected) -> None:
    assert cut(d, *bounds) == expected


@pytest.mark.parametrize(
    "a, b, expected",
    [
        (H, H, (H, "")),
        (B, EQUAL, (B, "")),
        (EQUAL, B, (B, "")),
        (B, ((("", 2), ("=", 2)),), (B, "")),
        (H, W, (H, "order")),
        (dimension("", 6), H, (H, "values")),
        (HW, dimension("", 36), (HW, "values")),
        (HW, ((("W", 6), ("H", 6)),), (HW, "order")),
        (HW, ((("W", 4), ("", 9)),), (HW, "order")),
        (WITH_TOKEN, dimension("", 37), (WITH_TOKEN, "values")),
        (WITH_TOKEN, ((("W", 37),),), (WITH_TOKEN, "order")),
        (((("", 4), ("H", 6)),), ((("=", 2), ("", 2), ("H", 6)),), (((("", 4), ("H", 6)),), "")),
        (((("=", 4), ("H", 6)),), ((("=", 2), ("=", 2), ("H", 6)),), (((("=", 4), ("H", 6)),), "")),
    ],
)
def test_operands_meet_where_their_places_correspond(a, b, expected) -> None:
    assert merge(a, b) == expected
    assert not is_constant(merge(a, b)[0])
