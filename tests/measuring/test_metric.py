"""EquivarianceError against measure on all images together, in one process and in two."""

import json
import math

import pytest
import torch
from torch import nn

import ien
from tests.helpers.losses import images, net
from tests.helpers.nets import digit_like_classifier
from tests.helpers.two_processes import together


def same(report: ien.Report, other: ien.Report) -> None:
    """Every number of the two is the same, up to the order of sums."""

    def compare(a, b) -> None:
        if isinstance(a, dict):
            assert a.keys() == b.keys()
            for key in a:
                compare(a[key], b[key])
        elif isinstance(a, list):
            for one, two in zip(a, b, strict=True):
                compare(one, two)
        elif isinstance(a, float):
            assert a == pytest.approx(b, rel=1e-9, abs=1e-12)
        else:
            assert a == b

    compare(report.to_dict(), other.to_dict())


@pytest.mark.parametrize("action", ["pooled", "regular"])
def test_batches_of_any_size_give_the_report_of_measure(action) -> None:
    model, x = net(), images(7)
    metric = ien.EquivarianceError("rot4", ["1", "3"], 4, floors=True, action=action)
    for batch in x.split([3, 1, 1, 2]):
        metric.update(model, batch)
    whole = ien.measure(model, x, "rot4", ["1", "3"], 4, action=action)
    same(metric.report(), whole)
    assert metric.compute() == metric.report().scalars()  # computing changes nothing
    metric.update(model, x)
    assert metric.report().images == 14
    assert metric.report().layers["1"].relative == pytest.approx(whole.layers["1"].relative)


def test_labels_and_chosen_layers_are_those_of_measure() -> None:
    model, x, y = digit_like_classifier().double(), images(9), torch.randint(3, (9,))
    metric = ien.EquivarianceError("rot8")
    for batch, labels in zip(x.split(4), y.split(4), strict=True):
        metric.update(model, batch, labels)
    same(metric.report(), ien.measure(model, x, "rot8", labels=y, floors=False))
    assert "equivariance/rot8/output/worst_accuracy" in metric.compute()


def test_the_model_is_left_as_it_was_and_wrappers_do_not_matter() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()
    before = [value.clone() for value in model.state_dict().values()]
    metric = ien.EquivarianceError("rot4")
    metric.update(nn.DataParallel(model), torch.rand(4, 1, 8, 8))
    metric.update(model, torch.rand(4, 1, 8, 8))
    assert model.training and all(module.training for module in model)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_reset_forgets_images_and_model() -> None:
    metric, x = ien.EquivarianceError("rot4"), torch.rand(4, 1, 8, 8)
    metric.update(nn.Conv2d(1, 4, 3), x)
    metric.reset()
    other = nn.Conv2d(1, 4, 3)
    metric.update(other, x)
    assert metric.compute() == ien.measure(other, x, "rot4").scalars()


class Answer:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class LikeHuggingFace(nn.Module):
    """Returns an object with logits, and takes images by the name that Hugging Face gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = digit_like_classifier()

    def forward(self, pixel_values: torch.Tensor) -> Answer:
        return Answer(self.inner(pixel_values))


def test_scores_inside_an_answer_are_found() -> None:
    model, x = LikeHuggingFace(), torch.rand(6, 1, 9, 9)
    own = ien.measure(model.inner, x, "rot4").output
    assert ien.measure(model, x, "rot4").output == own and not math.isnan(own.flip_rate)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: m.compute(), "needs two images or more: call update first; got 0"),
        (lambda m: (m.update(nn.Conv2d(1, 2, 3), torch.rand(1, 1, 8, 8)), m.compute()), "got 1"),
        (lambda m: [m.update(nn.Conv2d(1, 2, 3), torch.rand(2, 1, 8, 8)) for _ in "ab"], "another model"),
        (lambda m: m.update(nn.Conv2d(1, 2, 3), [torch.rand(2, 1, 8, 8)]), "one batch"),
        (lambda m: m.update(nn.Conv2d(1, 2, 3), torch.rand(2, 8, 8)), r"\(N, C, H, W\); got \(2, 8, 8\)"),
        (lambda m: ien.EquivarianceError("rot1"), "only the identity"),
        (lambda m: ien.EquivarianceError("rot4", action="pool"), "action"),
    ],
)
def test_mistakes_are_told_in_one_line(wrong, message) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as error:
        wrong(ien.EquivarianceError("rot4"))
    assert "\n" not in str(error.value)


def test_labels_come_with_all_batches_or_with_none() -> None:
    metric, model, x = ien.EquivarianceError("rot4"), digit_like_classifier(), torch.rand(2, 1, 9, 9)
    metric.update(model, x, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="for all batches or for none"):
        metric.update(model, x)


SHARES = {"uneven": [slice(0, 5), slice(5, 7)], "one has none": [slice(0, 7), slice(7, 7)]}


def measured_together(processes, folder, name) -> None:
    torch.manual_seed(0)
    model, x = net(), images(7)
    metric = ien.EquivarianceError("rot4", ["1", "3"], 4)
    parallel = nn.parallel.DistributedDataParallel(model)
    share = x[SHARES[name][processes.rank]]
    if len(share):
        metric.update(parallel, share)
    values = [metric.compute(), metric.report().images]
    (folder / f"{processes.rank}.json").write_text(json.dumps(values))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_two_processes_get_the_numbers_of_all_images(tmp_path, name) -> None:
    together(measured_together, tmp_path, name)
    torch.manual_seed(0)
    whole = ien.measure(net(), images(7), "rot4", ["1", "3"], 4, floors=False)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second and first == [pytest.approx(whole.scalars(), rel=1e-9), 7]
