"""adapt: a copy learns from the model itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.adapting.adapt import adapt


def images(count: int = 64, side: int = 12) -> Tensor:
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    return F.interpolate(coarse, (side, side), mode="bilinear")


def sided() -> nn.Module:
    """Tells how bright the left half is: the right answer changes with every rotation."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    net = nn.Sequential(*layers, nn.Linear(32, 4))
    with torch.no_grad():
        net[5].weight *= 30  # sure of itself
    return net.eval()


def test_a_share_of_the_images_stays_upright_and_the_rest_gets_every_other_element() -> None:
    from ien.adapting.adapt import _elements

    g = _elements(ien.group("rot4"), 16, 0.25, torch.Generator().manual_seed(0))
    assert torch.bincount(g, minlength=4).tolist() == [4, 4, 4, 4]
    g = _elements(ien.group("rot4"), 12, 0.0, torch.Generator().manual_seed(0))
    assert torch.bincount(g, minlength=4).tolist() == [0, 4, 4, 4]
    assert _elements(ien.group("rot4"), 5, 1.0, torch.Generator()).tolist() == [0, 0, 0, 0, 0]


def test_a_share_of_the_way_is_between_the_two_weights(tmp_path: Path) -> None:
    net = sided()
    halfway = adapt(net, images(), "rot4", minutes=0.005, share=0.5, folder=tmp_path, progress=False)
    learnt = torch.load(tmp_path / "adapting.pt", weights_only=True)["model"]
    for name, value in net.state_dict().items():
        expected = (value.double() + learnt[name].double()) / 2
        assert torch.allclose(halfway.state_dict()[name].double(), expected, atol=1e-6), name
    assert not torch.equal(halfway.get_parameter("0.weight"), net.get_parameter("0.weight"))


def test_the_copy_answers_more_alike_and_the_model_is_as_before() -> None:
    net = sided()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = images(128)
    adapted = adapt(net, x, "rot4", minutes=0.05, learning_rate=3e-3, progress=False)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name

    def divergence(model: nn.Module) -> float:
        total = 0.0
        wanted = net(x).softmax(1)
        for quarter in range(4):
            answer = model(x.rot90(quarter, (2, 3))).log_softmax(1)
            total += float(F.kl_div(answer, wanted, reduction="batchmean").detach())
        return total

    assert divergence(adapted) < 0.9 * divergence(net)
    running = adapted.get_buffer("1.running_mean")
    assert torch.equal(running, net.get_buffer("1.running_mean"))  # statistics are frozen


def test_ctrl_c_saves_the_checkpoint(tmp_path: Path) -> None:
    net = sided()
    calls = 0
    before = signal.getsignal(signal.SIGINT)

    def interrupt(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 40:
            signal.raise_signal(signal.SIGINT)

    class Interrupted(list[Tensor]):
        def __iter__(self):
            interrupt()
            return super().__iter__()

    batches = Interrupted(images().split(32))
    with pytest.raises(KeyboardInterrupt):
        adapt(net, batches, "rot4", minutes=5.0, folder=tmp_path, progress=False)
    saved = torch.load(tmp_path / "adapting.pt", weights_only=True)
    assert saved["step"] == 79 and saved["seconds"] > 0  # two batches a pass; the step is taken to its end
    assert signal.getsignal(signal.SIGINT) is before


def test_maps_are_rotated_before_they_are_compared() -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(3, 2, 3, padding=1)
    equivariant = ien.make_equivariant(net, "rot4", images(4), feature_groups=1)
    assert max(equivariant.errors.values()) < 1e-5
    ien.make_plain(net)
    weight = net.weight.detach().clone()
    adapted = adapt(net, images(), "rot4", minutes=0.005, outputs="map", progress=False)
    assert torch.allclose(adapted.weight, weight, atol=1e-2)  # there is nothing to change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.rand(8, 3, 12, 12)}, "8 images are too few to adapt to"),
        ({"images": torch.rand(64, 3, 12, 10)}, "images must be square"),
        ({"images": iter([torch.rand(64, 3, 12, 12)])}, "images can be gone through only once"),
        (
            {"images": torch.zeros(64, 3, 12, 12, dtype=torch.uint8)},
            "got torch.uint8: use .float\\(\\) / 255",
        ),
        (
            {"images": torch.rand(64, 1, 12, 12), "features": 0.0},
            "the model fails on images 1×12×12 of torch",
        ),
        ({"images": torch.rand(64, 3, 12)}, r"must have shape \(N, C, H, W\); got \(64, 3, 12\)"),
        ({"images": []}, "there are no images to adapt to"),
        ({"images": torch.full((64, 3, 12, 12), float("nan"))}, "NaN"),
        ({"minutes": 0}, "minutes must be a number above 0; got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be a number above 0; got -1.0"),
        ({"learning_rate": 1e30}, "use a learning_rate below 1e\\+30"),
        ({"features": -1.0}, "features must be a number of at least 0; got -1.0"),
        ({"mix": 1.5}, "mix must be a number from 0 to 1; got 1.5"),
        ({"outputs": "mask"}, "outputs must be one of"),
    ],
)
def test_bad_input_gets_one_line(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"images": images(), "group": "rot4", "minutes": 0.01, "progress": False}
    with pytest.raises(ValueError, match=message):
        adapt(sided(), **(arguments | change))  # type: ignore[arg-type]


def test_what_holds_no_images_is_named() -> None:
    with pytest.raises(TypeError, match=r"images must be a tensor \(N, C, H, W\) or .*; got None"):
        adapt(sided(), None, "rot4", progress=False)  # type: ignore[arg-type]


def test_text_is_no_images() -> None:
    with pytest.raises(TypeError, match=r"images must be a tensor .*; got a str"):
        adapt(sided(), "photos", "rot4", progress=False)  # type: ignore[arg-type]


def test_a_frozen_model_is_refused() -> None:
    with pytest.raises(ValueError, match="all parameters of the model are frozen"):
        adapt(sided().requires_grad_(False), images(), "rot4", progress=False)
