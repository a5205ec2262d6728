"""How many feature groups layers get: by the paper's numbers, the width, and the unit of the mix."""

import importlib
from fractions import Fraction

import pytest
import torch
from torch import nn

import ien
from ien.models import create


@pytest.mark.parametrize(
    ("name", "feature_groups", "width", "groups"),
    [
        ("cnn6", 4, 1, (32, 48, 64, 64, 96, 128)),
        ("cnn6", 4, 1 / 8, (4, 6, 8, 8, 12, 16)),
        ("cnn6", 4, 1 / 64, (1, 1, 1, 1, 1, 2)),  # ½ and ¾ of a group, 1½ twice a tie
        ("cnn6", 4, Fraction(1, 3), (11, 16, 21, 21, 32, 43)),
        ("cnn6", 4, 1 / 3, (11, 16, 21, 21, 32, 43)),  # 32/3 and 128/3 round up, 64/3 down
        ("cnn6", 4, 0.1, (3, 5, 6, 6, 10, 13)),
        ("cnn6", 1, 2, (64, 96, 128, 128, 192, 256)),
        ("cnn6", "4-2-1", 1 / 4, (8, 12, 16, 16, 24, 32)),
        ("cnn6", "4-2-1", 1 / 8, (4, 4, 8, 8, 12, 16)),  # 6 lies between 4 and 8
        ("cnn6", "4-2-1", 3 / 8, (12, 16, 24, 24, 36, 48)),  # 18 between 16 and 20
        ("cnn6", "8-4-2-1", 1 / 8, (8, 8, 8, 8, 8, 16)),  # 4 of a unit of 8 is a tie with none, 12 with 16
        ("cnn6", "8-4-2-1", 1 / 4, (8, 8, 16, 16, 24, 32)),
        ("cnn6", "8-4-2", 1e-9, (4,) * 6),
        ("resnet18", 4, 1 / 4, (8, 17, 34, 68)),  # 8½ down
        ("resnet18", 2, 1 / 4, (17, 34, 68, 136)),
        ("resnet18", 8, 1 / 4, (6, 12, 24, 48)),
        ("resnet18", 1, 1 / 8, (8, 16, 32, 64)),
        ("resnet18", "4-2-1", 1 / 4, (8, 16, 32, 68)),  # 34 is a tie of 32 and 36
        ("resnet18", "8-4-2-1", 1 / 4, (8, 8, 24, 48)),
        ("resnet18", "8-1", 1 / 1000, (2, 2, 2, 2)),
        ("vgg", 4, 1 / 8, (4, 9, 18, 18, 36, 36, 36, 36)),  # 4½ down
        ("vgg", 2, 1 / 8, (9, 18, 36, 36, 72, 72, 72, 72)),
        ("vgg", 8, 1 / 4, (6, 12, 25, 25, 50, 50, 50, 50)),
        ("vgg", "4-2-1", 1 / 4, (8, 16, 36, 36, 72, 72, 72, 72)),  # 9 and 18: 18 is a tie of 16 and 20
        ("vgg", "8-4-2", 1, (24, 48, 100, 100, 200, 200, 200, 200)),
    ],
)
def test_feature_groups_are_rounded_to_the_unit_with_ties_down(name, feature_groups, width, groups) -> None:
    num_groups = importlib.import_module(f"ien.models.{name}").num_groups
    assert num_groups(feature_groups, width) == groups
    with torch.device("meta"):
        model = create(name, feature_groups=feature_groups, width=width)
    spec = ien.FeatureGroups.of(feature_groups)
    assert model.feature_groups == spec
    channels = []
    for tap in model.taps:
        convs = [layer for layer in model.get_submodule(tap).modules() if isinstance(layer, nn.Conv2d)]
        channels.append(convs[-1].out_channels)
    in_units = sum(size * count for size, count in zip(spec.sizes, spec.counts, strict=True))
    assert channels == [count // spec.unit * in_units for count in groups]


@pytest.mark.parametrize("name", ["resnet18", "vgg", "unet"])
def test_feature_groups_of_two_have_the_channels_of_four(name) -> None:
    num_groups = importlib.import_module(f"ien.models.{name}").num_groups
    assert [2 * count for count in num_groups(2, 1)] == [4 * count for count in num_groups(4, 1)]
