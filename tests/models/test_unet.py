"""The U-Net: maps against a written-out net, exact sizes, and scores that rotate with the image."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.models import create, unet
from tests.helpers.nets import unsettled
from tests.helpers.symmetrised import assert_verdict_is_measured, diagnosed

pytestmark = pytest.mark.usefixtures("one_thread")
TAPS = tuple(f"level{i}" for i in range(1, 8))


@pytest.mark.parametrize(
    ("feature_groups", "width", "channels"),
    [
        (1, 1, (32, 64, 128, 256)),
        (4, 1, (32, 64, 128, 256)),
        (8, 1, (48, 96, 192, 384)),
        (4, 0.5, (16, 32, 64, 128)),
    ],
)
def test_channels_and_parameters_by_arithmetic(feature_groups, width, channels) -> None:
    with torch.device("meta"):
        model = unet(feature_groups, width, num_classes=3, in_channels=1)
    a, b, c, d = channels
    count = 0
    for before, after in [(1, a), (a, b), (b, c), (c, d), (2 * c, c), (2 * b, b), (2 * a, a)]:
        count += 9 * after * (before + after) + 4 * after
    for before, after in [(d, c), (c, b), (b, a)]:
        count += 4 * before * after + after
    assert sum(p.numel() for p in model.parameters()) == count + 3 * a + 3
    assert model.taps == TAPS and str(model.feature_groups) == str(feature_groups)


def test_maps_and_scores_equal_those_written_out_from_the_weights() -> None:
    model = unsettled(unet("4-2-1", 1 / 4, num_classes=5).double())
    weights = model.state_dict()

    def level(i: int, h: Tensor) -> Tensor:
        for at in (0, 3):
            h = F.conv2d(h, weights[f"level{i}.{at}.weight"], padding=1)
            mean, var, scale, shift = (
                weights[f"level{i}.{at + 1}.{key}"].view(-1, 1, 1)
                for key in ("running_mean", "running_var", "weight", "bias")
            )
            h = ((h - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)
        return h

    def halved(h: Tensor) -> Tensor:
        return h.unflatten(3, (-1, 2)).amax(4).unflatten(2, (-1, 2)).amax(3)

    def doubled(i: int, h: Tensor) -> Tensor:
        # each pixel writes a square of 2×2, its own and no other's
        squares = torch.einsum("bihw,iorc->bohrwc", h, weights[f"up{i}.weight"])
        return squares.flatten(4, 5).flatten(2, 3) + weights[f"up{i}.bias"].view(-1, 1, 1)

    x = torch.rand(2, 3, 16, 24, dtype=torch.float64)
    down = [level(1, x)]
    for i in (2, 3, 4):
        down.append(level(i, halved(down[-1])))
    h = down.pop()
    for i in (5, 6, 7):
        h = level(i, torch.cat([down.pop(), doubled(i, h)], 1))
    expected = torch.einsum("bihw,oi->bohw", h, weights["head.weight"][:, :, 0, 0])
    expected = expected + weights["head.bias"].view(-1, 1, 1)
    with torch.no_grad():
        scores = model(x)
    assert scores.shape == (2, 5, 16, 24)
    assert (scores - expected).abs().max() < 1e-12 * expected.abs().max()


def test_every_parameter_gets_a_gradient_and_every_level_a_term() -> None:
    model = create("unet", width=1 / 4, num_classes=5)
    objective = ien.EquivarianceLoss("rot4xflip", model.taps, model.feature_groups)
    x, masks = torch.rand(2, 3, 16, 16), torch.randint(5, (2, 16, 16))
    out = objective(model, x)
    (F.cross_entropy(out.output, out.targets(masks, kind="mask")) + out.loss).backward()
    assert {layer for _, layer in out.terms} == set(TAPS) and all(term > 0 for term in out.terms.values())
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


@pytest.mark.parametrize(("group", "feature_groups", "width"), [("rot4", 4, 3 / 4), ("rot4xflip", 8, 1)])
def test_tied_scores_rotate_with_the_image_after_training_and_when_plain_again(
    group, feature_groups, width
) -> None:
    model = unet(feature_groups, width, num_classes=4)
    original = copy.deepcopy(model)
    acting, x = ien.group(group), torch.rand(len(ien.group(group)), 3, 24, 24)
    ien.make_equivariant(model, group, x[:2])  # warnings are errors: it is wide enough
    assert sum(p.numel() for p in model.parameters()) < 1.1 * sum(
        p.numel() for p in original.parameters()
    ) / len(acting)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        F.cross_entropy(model(x[:2]), torch.randint(4, (2, 24, 24))).backward()
        optimizer.step()
        optimizer.zero_grad()

    g = torch.arange(len(acting))
    model.eval()
    with torch.no_grad():
        tied = model(x)
        assert tied.shape == (len(g), 4, 24, 24)  # classes, in which nothing is permuted
        error = (model(acting.act(x, g)) - acting.act(tied, g)).abs().max() / tied.abs().max()
        assert error < 1e-5
        ien.make_plain(model)
        assert torch.equal(model(x), tied)
    assert list(model.state_dict()) == list(original.state_dict())
    assert [type(m) for m in model.modules()] == [type(m) for m in original.modules()]
    with torch.no_grad():
        original.eval()
        scores = original(x)
        free = (original(acting.act(x, g)) - acting.act(scores, g)).abs().max() / scores.abs().max()
        assert free > 1e-2  # the ruler measures something


@pytest.mark.parametrize("size", [8, 16, 24, 40, 56])
def test_the_doctor_calls_multiples_of_8_exact_and_so_does_measuring(size) -> None:
    assert_verdict_is_measured(unet(width=1 / 8), size)


@pytest.mark.parametrize("size", [96, 128, 192, 200, 256])
def test_the_doctor_calls_the_sizes_of_photographs_exact(size) -> None:
    assert diagnosed(unet(width=1 / 8), size).exact


def test_other_sizes_are_refused_with_one_that_works() -> None:
    with pytest.raises(ValueError, match="multiples of 8; got 100×64: pad them to 104×64"):
        unet(width=1 / 8)(torch.rand(1, 3, 100, 64))
    with pytest.raises(ValueError, match=r"unet has widths .* 1, 2, 4 or 8; got 3"):
        unet(3)


def test_names_lead_to_it() -> None:
    assert type(create("unet", width=1 / 8)) is ien.models.UNet
    assert isinstance(ien.models.unet(width=1 / 8).head, nn.Conv2d)
    assert "unet" in ien.models.NAMES and "unet" not in ien.models.MODELS  # it classifies no images
