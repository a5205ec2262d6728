"""Normalisation inside a network: constants that are no weights, for any number of channels."""

import pytest
import torch

from ien.models import create
from ien.models.normalize import Normalize


def test_it_is_no_weight_and_survives_the_meta_device() -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    with torch.device("meta"):
        layer = Normalize(mean, std)
    x = torch.rand(2, 3, 4, 4)
    expected = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    torch.testing.assert_close(layer(x), expected)
    assert layer.state_dict() == {}


@pytest.mark.parametrize("in_channels", [1, 3, 4])
@pytest.mark.parametrize("name", ["cnn3", "wide-resnet"])
def test_any_number_of_channels_is_normalised(name, in_channels) -> None:
    net = create(name, width=1 / 16, in_channels=in_channels)
    assert net(torch.rand(2, in_channels, 28, 28)).shape == (2, 10)


def test_images_of_other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"for images of 3 channels \(in_channels\); got \(2, 1, 24, 24\)"):
        create("wide-resnet", width=1 / 16)(torch.rand(2, 1, 24, 24))
