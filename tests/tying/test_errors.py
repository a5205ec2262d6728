"""What cannot be tied: one line that names the layer and the remedy, and a model as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import ien
from tests.helpers import exact, zoo

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*independent features"),  # these networks are small
]


def assert_refused(model: nn.Module, *says: str, images: Any, group: Any = "rot4", **settings: Any) -> None:
    """One line with all of these words, and the model as it was: values, classes, modes and hooks."""
    before, kinds = copy.deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    modes, random = [module.training for module in model.modules()], torch.get_rng_state()
    parameters = list(model.parameters())
    with pytest.raises((ValueError, TypeError, KeyError, RuntimeError)) as caught:
        ien.make_equivariant(model, group, images, **settings)
    (message,) = caught.value.args
    assert "\n" not in message
    for word in says:
        assert word in message, message
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert [type(module) for module in model.modules()] == kinds
    assert [module.training for module in model.modules()] == modes
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("name", zoo.REFUSED)
def test_a_model_that_cannot_be_tied(name: str) -> None:
    case = zoo.REFUSED[name]
    settings = {"feature_groups": case.feature_groups, **case.entry.settings()}
    assert_refused(case.entry.make(), *case.says, images=case.entry.images(), **settings)


def net() -> nn.Module:
    return nn.Sequential(zoo.conv_norm(3, 32), nn.ReLU(), zoo.head(32))


IMAGES = zoo.Entry(net).images()
SETTINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no images": ({"images": [1, 2]}, ("(B, C, H, W)", "list")),
    "one image": ({"images": IMAGES[0]}, ("(B, C, H, W)", "(3, 17, 17)")),
    "integers": ({"images": torch.ones(2, 3, 17, 17, dtype=torch.uint8)}, ("uint8",)),
    "NaN": ({"images": IMAGES / 0 * 0}, ("NaN",)),
    "constant": ({"images": torch.ones(2, 3, 17, 17)}, ("invariant", "torch.rand")),
    "not square": ({"images": IMAGES[..., :15]}, ("17", "15")),
    "other channels": ({"images": IMAGES[:, :1]}, ("1×17×17",)),
    "scale": ({"group": "scale0.5"}, ("rot4",)),
    "unknown group": ({"group": "rott4"}, ("rott4", "rot4")),
    "weights": ({"weights": "projected"}, ('"random"', '"project"', "projected")),
    "kernels": ({"kernels": "smoth"}, ('"free"', '"smooth"', "smoth")),
    "outputs": ({"outputs": "vectors"}, ('"scalar"', '"vector"', "vectors")),
    "vector of five": ({"outputs": "vector"}, ("'2.2'", "5", "pairs")),
    "slack": ({"slack": -1.0}, ("slack", "-1")),
    "size": ({"feature_groups": 3}, ("3", "rot4")),
    "size as text": ({"feature_groups": "automatic"}, ("automatic", "auto")),
    "name": ({"feature_groups": {"": 4, "2.3": 1}}, ("2.3", "2.2")),
    "nothing said": ({"feature_groups": {"2": 1}}, ("'0.0'", '""')),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_cannot_be(name: str) -> None:
    settings, says = SETTINGS[name]
    assert_refused(net(), *says, **{"images": IMAGES, **settings})


def test_what_is_no_model() -> None:
    with pytest.raises(TypeError, match=r"make_equivariant needs a torch\.nn\.Module; got a function"):
        ien.make_equivariant(net, "rot4", IMAGES)


def test_a_model_that_is_tied_already() -> None:
    model = net()
    ien.make_equivariant(model, "rot4", IMAGES)
    assert_refused(model, "already", "make_plain", images=IMAGES)
    ien.make_plain(model)
    ien.make_equivariant(model, "rot4xflip", IMAGES)
    assert exact.error(model.eval(), zoo.Entry(net, group="rot4xflip")) < exact.ROUNDING


def test_a_plain_model_stays_as_it_is() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    assert ien.make_plain(model) is model
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert ien.plain_copy(model) is not model


@pytest.mark.parametrize(
    ("wrap", "says"),
    [(torch.compile, "torch.compile"), (nn.DataParallel, "DataParallel")],
    ids=["compiled", "parallel"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_wrapped_model(wrap: Any, says: str) -> None:
    assert_refused(wrap(net()), says, "before", images=IMAGES)


def test_a_model_without_values() -> None:
    assert_refused(net().to("meta"), "'0.0.weight'", "meta", "to_empty", images=IMAGES)


def test_an_argument_that_is_missing() -> None:
    assert_refused(zoo.conditioned(), "condition", "args", images=IMAGES)


def test_a_narrow_network_is_warned_of_with_the_width_that_would_do() -> None:
    model = nn.Sequential(zoo.conv_norm(3, 4), nn.ReLU(), zoo.head(4))
    with pytest.warns(UserWarning, match=r"layer '2\.2' has only 1 .* 6 × 4 = 24 or more"):
        ien.make_equivariant(model, "rot4", IMAGES)
    assert exact.error(model.eval(), zoo.Entry(net)) < exact.ROUNDING


@pytest.mark.parametrize("strict", [True, False])
def test_plain_weights_for_a_tied_model(strict: bool) -> None:
    model = net()
    ien.make_equivariant(model, "rot4", IMAGES)
    with pytest.raises(RuntimeError, match=r"'0\.0\.weight' belongs to a plain model: .*weights=\"project\""):
        model.load_state_dict(net().state_dict(), strict=strict)
    ien.make_plain(model).load_state_dict(net().state_dict())
