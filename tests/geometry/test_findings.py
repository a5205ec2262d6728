"""Findings say why, what it costs and what to do."""

import pytest
import torch
from torch import nn

from ien import doctor
from tests.helpers.symmetrised import Fn, diagnosed, strided


def test_cost_is_the_relative_error_of_the_worst_element() -> None:
    found = doctor(nn.Conv2d(1, 1, 1, stride=2), (1, 8, 8)).findings[0]
    assert found.cost == pytest.approx(2, rel=0.2)  # other pixels of noise: unrelated
    assert found.reason == "8 + 2·0 − 1·(1−1) − 1 = 7 is not divisible by the stride 2"
    assert found.remedy == "a map of 7 or 9" and found.shift == 0.5


def test_of_a_map_that_is_not_square_the_axis_that_fails_is_explained() -> None:
    found = doctor(strided(3), (3, 9, 12))
    assert [f.kind for f in found.findings] == ["input", "grid"]
    assert found.findings[1].reason.startswith("12 + 2·1") and found.findings[1].remedy == "11 or 13 columns"
    assert {9, 11} <= set(found.exact_sizes) and "exact square input sizes" in str(found)
    assert "(nearest: 7 below, 13 above)" in str(found)


@pytest.mark.parametrize(
    "model, kind, remedy",
    [
        (nn.Conv2d(3, 3, (1, 7), padding=(0, 3)), "grid", "use a 7×7 kernel"),
        (Fn(lambda x: x.view(2, 3, 2, 4, 2, 4).mean((3, 5))), "unknown", "pool instead of windows"),
        (Fn(lambda x: x + torch.arange(8.0)), "position", "replace a position embedding by a relative one"),
        (nn.ConvTranspose2d(3, 3, 3, 2, 1, 1), "grid", "use output_padding=0"),
        (nn.ZeroPad2d((0, 1, 0, 1)), "grid", "pad all four sides alike"),
        (nn.Upsample(size=12), "grid", "use mode='bilinear'"),
        (Fn(lambda x: x.roll(1, 3)), "grid", "leave the map in place"),
        (Fn(lambda x: x.repeat(1, 1, 2, 1)), "grid", "repeat both the same way"),
        (Fn(lambda x: x.mT), "position", "transpose it back"),
        (Fn(lambda x: x.max(2)[1]), "unknown", "use values, not indices"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_remedies_name_what_to_do(model, kind, remedy) -> None:
    found = diagnosed(model, 8).findings
    assert [f.kind for f in found] == [kind] and remedy in found[0].remedy


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_same_padding_of_an_even_kernel_shifts_the_grid_by_half_a_pixel() -> None:
    found = diagnosed(nn.Conv2d(3, 3, 4, padding="same"), 9).findings[0]
    assert found.shift == 0.5 and "padding: left 0, right 1, top 0, bottom 1" in found.op


def test_findings_that_differ_in_numbers_only_are_one() -> None:
    found = doctor(Fn(lambda x: torch.stack([x[:, :, i] * 2 for i in range(8)], 2)), (3, 8, 8))
    slices = [f for f in found.findings if f.kind == "grid"]
    assert [(f.op, f.times) for f in slices] == [("slice 0:1 of 8 rows", 8)]
    assert "slice 0:1 of 8 rows, on 8×8, 8 times with different numbers" in str(found)
