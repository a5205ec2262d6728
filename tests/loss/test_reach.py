"""Targets out of reach: against the floors that measure prints, which run the model again."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import ien
from ien.loss.reach import out_of_reach


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))


@pytest.mark.parametrize("group", ["rot8", "scale0.8"])
def test_the_first_call_refuses_a_target_far_below_the_floor_that_measure_prints(group) -> None:
    model, x = net(), torch.rand(4, 1, 13, 13)
    report = ien.measure(model, x, group, ["2"], 8)
    floor = report.layers["2"].floor
    assert floor > 0.01
    told = rf"target 1e-06 is out of reach: .* 9×9 map of layer '2' .* {floor:.2g} under {group}, its floor"
    with pytest.raises(ValueError, match=told):
        ien.EquivarianceLoss(group, ["2"], 8, target=1e-6)(model, x)
    for target in (floor / 20, floor):  # training may lower a floor
        assert ien.EquivarianceLoss(group, ["2"], 8, target=target)(model, x).loss.isfinite()


def test_only_the_first_call_looks_at_floors() -> None:
    model, smooth = net(), torch.ones(2, 1, 13, 13)
    objective = ien.EquivarianceLoss("rot8", ["2"], 8, target=1e-6)
    objective(model, smooth)  # constant maps lose nothing
    assert objective(model, torch.rand(2, 1, 13, 13)).loss.isfinite()


@pytest.mark.parametrize("options", [{"groups": "rot4"}, {"groups": "rot8", "interpolation": "nearest"}])
def test_groups_without_a_known_floor_may_have_any_target(options) -> None:
    objective = ien.EquivarianceLoss(**options, layers=["2"], feature_groups=8, target=1e-6)
    assert objective(net(), torch.rand(2, 1, 13, 13)).loss.isfinite()


def test_an_unknown_floor_rules_out_no_target() -> None:
    assert out_of_reach(1e-9, math.nan, "a", (3, 3), ien.rotation(8)) == ""
