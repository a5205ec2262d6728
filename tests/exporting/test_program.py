"""A program takes any number of images; what does not export is named with its layer, in one line."""

import logging
import warnings

import pytest
import torch
from torch import nn

from ien.exporting.program import exported_program, quiet_torch
from tests.helpers.nets import Function


def around(layer: nn.Module) -> nn.Sequential:
    """The layer is '1.inner'."""
    middle = nn.Sequential()
    middle.add_module("relu", nn.ReLU())
    middle.add_module("inner", layer)
    return nn.Sequential(nn.Conv2d(3, 4, 3), middle, nn.Flatten()).eval()


def test_a_program_takes_any_number_of_images_and_with_any_size_other_sizes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU()).eval()
    fixed = exported_program(net, torch.rand(2, 3, 9, 9), any_size=False).module()
    free = exported_program(net, torch.rand(2, 3, 9, 9), any_size=True).module()
    for count, height, width in [(1, 9, 9), (5, 9, 9)]:
        x = torch.rand(count, 3, height, width)
        torch.testing.assert_close(fixed(x), net(x))
        torch.testing.assert_close(free(x), net(x))
    x = torch.rand(3, 3, 12, 15)
    torch.testing.assert_close(free(x), net(x))
    with pytest.raises(AssertionError):
        fixed(x)


BROKEN = {
    "a branch on values": lambda x: x if x.mean() > 0 else -x,
    "numpy": lambda x: torch.from_numpy(x.detach().numpy() + 1),
    "a list of numbers": lambda x: x * x.flatten()[0].tolist() if x.flatten()[0].tolist() > 1 else x,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_layer_that_does_not_export_is_named(name, capfd) -> None:
    net = around(Function(BROKEN[name]))
    net(torch.rand(2, 3, 8, 8))  # it runs
    with pytest.raises(
        ValueError, match=r"^layer '1\.inner' \(Function\) does not export \(.+\): "
    ) as caught:
        exported_program(net, torch.rand(2, 3, 8, 8), any_size=False)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert capfd.readouterr() == ("", "")  # torch prints pages


FIXED = {
    # 2 fits any even number of numbers, so this layer runs on three images too
    "a reshape": (lambda x: x.reshape(2, 4, -1), False, "batches of 2 images", "x.reshape(len(x), -1)"),
    "a sum": (lambda x: x + torch.zeros(2, 1, 1, 1), False, "batches of 2 images", "x.reshape(len(x), -1)"),
    "positions": (lambda x: x + torch.zeros(6, 1), True, "images of height 8", "leave any_size out"),
}


@pytest.mark.parametrize("name", FIXED)
def test_a_layer_that_fixes_the_number_or_size_of_images_is_named(name) -> None:
    layer, any_size, problem, remedy = FIXED[name]
    net = around(Function(layer))
    with pytest.raises(ValueError, match=r"^layer '1\.inner' \(Function\) only works for ") as caught:
        exported_program(net, torch.rand(2, 3, 8, 8), any_size)
    assert problem in str(caught.value) and remedy in str(caught.value)


def test_a_branch_on_the_number_of_images_is_one_of_the_model_itself() -> None:
    net = Function(lambda x: x if len(x) == 2 else 2 * x).eval()
    with pytest.raises(ValueError, match=r"'the model itself' \(Function\) only works for batches of 2"):
        exported_program(net, torch.rand(2, 3, 8, 8), any_size=False)


def test_only_what_is_said_inside_is_kept_back(caplog) -> None:
    logger = logging.getLogger("torch.somewhere")
    with quiet_torch():
        logger.warning("inside")
        warnings.warn("inside", stacklevel=1)  # would be an error
    logger.warning("after")
    assert caplog.messages == ["after"]
    with pytest.raises(UserWarning, match="after"):
        warnings.warn("after", stacklevel=1)
