"""GroupAverage against a loop over elements, for everything a model may return."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ien
from ien.adapting.average import GroupAverage
from ien.adapting.canonicalize import Canonicalize


class Detector(nn.Module):
    """Returns a label, a map, a box, a point and a vector, none of them equivariant."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.numbers = nn.Linear(3 * 7 * 7, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        maps = self.conv(x)
        numbers = self.numbers(maps.flatten(1))
        return {
            "scores": numbers,
            "maps": maps,
            "box": numbers[:, :4],
            "at": numbers[:, 4:6],
            "to": numbers[:, 6:],
        }


KINDS = {"scores": "scores", "maps": "map", "box": "boxes", "at": "points", "to": "vectors"}


def test_the_average_is_a_loop_over_the_elements() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 5 * 5, 4))
    x = torch.rand(3, 2, 7, 7)
    values, probabilities = torch.zeros(3, 4), torch.zeros(3, 4)
    for quarter in range(4):
        for view in (x.rot90(quarter, (2, 3)), x.flip(3).rot90(quarter, (2, 3))):
            values = values + net(view)
            probabilities = probabilities + net(view).softmax(1)
    averaged = GroupAverage(net, "rot4xflip", outputs="invariant")(x)
    assert torch.allclose(averaged, values / 8, atol=1e-6)
    scores = GroupAverage(net, "rot4xflip")(x)
    assert torch.allclose(scores.exp(), probabilities / 8, atol=1e-6)


@pytest.mark.parametrize("group", ["rot4", "rot4xflip", "flip"])
def test_everything_it_returns_moves_with_the_image(group: str) -> None:
    torch.manual_seed(0)
    average = GroupAverage(Detector(), group, KINDS)
    x = torch.rand(2, 1, 7, 7)
    acting = ien.group(group)
    before = average(x)
    for element in range(len(acting)):
        g = torch.full((2,), element)
        after = average(acting.act(x, g))
        assert torch.allclose(after["scores"], before["scores"], atol=1e-5)
        assert torch.allclose(after["maps"], acting.act(before["maps"], g), atol=1e-5)
        assert torch.allclose(after["box"], acting.act_on_boxes(before["box"], g, (7, 7)), atol=1e-4)
        assert torch.allclose(after["at"], acting.act_on_points(before["at"], g, (7, 7)), atol=1e-4)
        assert torch.allclose(after["to"], acting.act_on_vectors(before["to"], g), atol=1e-4)


def test_arguments_are_repeated_and_gradients_flow() -> None:
    class Shifted(nn.Conv2d):
        def forward(self, x: Tensor, shift: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x).mean((2, 3)) + shift[:, None]

    net = Shifted(1, 2, 3)
    x, shift = torch.rand(3, 1, 5, 5), torch.tensor([0.0, 1.0, 5.0])
    average = GroupAverage(net, "rot4", outputs="invariant")
    assert torch.allclose(average(x, shift) - average(x, 0 * shift), shift[:, None].expand(3, 2), atol=1e-5)
    average(x, shift).sum().backward()
    assert net.weight.grad is not None and net.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ("masks", "outputs must be one of 'scores', 'invariant', 'map'"),
        ("angles", "angles have no mean"),
        ("map", r"outputs='map' needs tensors \(B, C, H, W\) with B = 3; the model returns \(3, 4\)"),
        ({"a": "scores"}, "outputs names keys \\(a\\), but the model returns a Tensor"),
    ],
)
def test_what_cannot_be_averaged_is_named(outputs: object, message: str) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(25, 4))
    with pytest.raises(ValueError, match=message):
        GroupAverage(net, "rot4", outputs)(torch.rand(3, 1, 5, 5))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images", "given"), [([1], "a list"), (None, "None"), (np.ones((1, 1, 5, 5)), "a numpy array")]
)
def test_what_is_no_tensor_is_named(images: object, given: str) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(25, 4))
    for wrapped in (GroupAverage(net, "rot4"), Canonicalize(net, "rot4")):
        with pytest.raises(TypeError, match=rf"images must be a tensor \(B, C, H, W\); got {given}"):
            wrapped(images)


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(TypeError, match=r"GroupAverage needs a torch\.nn\.Module; got a str"):
        GroupAverage("net.pth", "rot4")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Canonicalize needs a torch\.nn\.Module; got a function"):
        Canonicalize(lambda x: x, "rot4")  # type: ignore[arg-type]


def test_a_key_without_a_kind_is_named() -> None:
    kinds = dict(KINDS)
    del kinds["to"]
    with pytest.raises(
        ValueError, match=r"returns 'to', which outputs does not name \(it names .*: add its kind"
    ):
        GroupAverage(Detector(), "rot4", kinds)(torch.rand(2, 1, 7, 7))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["net.pt2", "net.onnx"])
def test_it_is_exported_for_any_number_of_images(name: str, tmp_path: Path) -> None:
    if name == "net.onnx":
        pytest.importorskip("onnxscript", reason="needs pip install 'ien[export]'")
        pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'ien[export]'")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    averaged = GroupAverage(net, "rot4xflip").eval()
    images = torch.rand(5, 3, 9, 9)
    exported = ien.export(averaged, tmp_path / name, images, "rot4xflip")  # in batches of 1, 3 and 5
    assert exported.difference < 1e-4
    for version in exported.versions.values():
        assert max(version.errors.values()) < 1e-8


@pytest.mark.parametrize("group", ["rot4xflip", "rot8"])
def test_everything_it_returns_is_exported(group: str) -> None:
    torch.manual_seed(0)
    kinds = {"scores": "scores", "maps": "map", "box": "boxes", "at": "points", "to": "vectors"}
    average = GroupAverage(Detector(), group, kinds).eval()  # type: ignore[arg-type]
    batch = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(average, (torch.rand(2, 1, 7, 7),), dynamic_shapes=batch).module()
    x = torch.rand(5, 1, 7, 7)
    found, expected = program(x), average(x)
    for key, value in expected.items():
        assert torch.allclose(found[key], value, atol=1e-4), key
