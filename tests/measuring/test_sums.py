"""Running sums against loops over all images at once, and intervals against a bootstrap."""

import numpy as np
import pytest
import torch

import ien
from tests.helpers.losses import D4, R4, R8, images, net
from tests.helpers.nets import Function, classifier


def test_intervals_are_those_of_a_bootstrap() -> None:
    # images of very different contrast: errors and variance rise together, and their ratio varies less
    contrast = torch.logspace(-1, 1, 300, dtype=torch.float64)[torch.randperm(300)]
    model, x = net(), images(300) * contrast.view(-1, 1, 1, 1)
    layer = ien.measure(model, x, R4, ["3"], 4, floors=False).layers["3"]

    h = ien.group_pool(model(x), 4).detach()
    errors = torch.zeros(300, dtype=torch.float64)
    for k in (1, 2, 3):
        h_g = ien.group_pool(model(torch.rot90(x, k, (-2, -1))), 4).detach()
        errors += (h_g - torch.rot90(h, k, (-2, -1))).square().mean((1, 2, 3)) / 3
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(1000):
        picked = torch.from_numpy(rng.integers(0, 300, 300))
        ratios.append(float(errors[picked].mean() / h[picked].var(correction=0)))
    low, high = layer.interval
    assert low < layer.relative < high
    assert abs((high - low) / 2 / 1.96 / np.std(ratios) - 1) < 0.1


def test_diversity_equals_a_loop_and_flags_copies() -> None:
    model, x = net(), images(6)
    weight, bias = model[2].weight.detach(), model[2].bias.detach()
    weight[1:4], bias[1:4] = weight[:1], bias[:1]  # the first four channels become equal
    report = ien.measure(model, x, R4, ["3"], 4, batch_size=4)
    layer = report.layers["3"]
    h = model(x).detach().numpy()
    expected = [np.mean(members.var(1, ddof=1)) / members.var() for members in (h[:, :4], h[:, 4:])]
    assert abs(expected[0]) < 1e-20 and expected[1] > 0.1
    assert abs(layer.diversity - np.mean(expected)) < 1e-12
    assert layer.collapsed == (0,) and layer.num_groups == 2
    assert "1 of 2 feature groups have collapsed" in str(report)
    weight[1:4] += 0.3 * weight[4:7]  # near copies still differ by more than a hundredth
    near = ien.measure(model, x, R4, ["3"], 4).layers["3"]
    assert near.collapsed == () and near.diversity < layer.diversity + 0.2


def noise(x):
    return torch.randn(len(x), 11, 40, 40, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("feature_groups", "num_groups", "diversity"), [("4-2-1", 4, 1), (1, 11, None)])
def test_unrelated_channels_have_diversity_one(feature_groups, num_groups, diversity) -> None:
    layer = ien.measure(Function(noise), torch.rand(8, 1, 9, 9), R4, [""], feature_groups).layers[""]
    assert layer.num_groups == num_groups and layer.collapsed == ()
    assert layer.diversity == (diversity and pytest.approx(diversity, abs=0.02))


@pytest.mark.parametrize("group", [R4, D4], ids=str)
def test_accuracies_equal_a_loop_over_images_and_elements(group) -> None:
    model, x, y = classifier(5), images(20), torch.arange(20) % 5
    hits = dict.fromkeys(group.labels, 0)
    averaged = 0
    with torch.no_grad():
        for image, label in zip(x, y, strict=True):
            softmax = torch.zeros(5, dtype=torch.float64)
            for element, name in enumerate(group.labels):
                scores = model(group.act(image[None], torch.tensor([element])))[0]
                hits[name] += int(scores.argmax() == label)
                softmax += scores.softmax(0)
            averaged += int(softmax.argmax() == label)
    report = ien.measure(model, x, group, ["1"], 4, labels=y, batch_size=7)
    assert report.accuracy == pytest.approx({name: count / 20 for name, count in hits.items()}, abs=1e-12)
    assert list(report.accuracy) == list(group.labels)
    assert abs(report.averaged_accuracy - averaged / 20) < 1e-12
    assert len(set(report.accuracy.values())) > 1  # or the elements could be mixed up


@pytest.mark.parametrize("classes", [5, 1])
def test_flips_and_logit_errors_equal_a_loop(classes) -> None:
    torch.manual_seed(2)
    model, x = classifier(classes), images(20)
    with torch.no_grad():
        model[-1].bias -= model(x).mean(0)  # a single score changes its sign for some images
        plain = model(x).numpy()
        output = ien.measure(model, x, R8, ["1"], 4, batch_size=7).output
        agreeing = np.ones(20, dtype=bool)
        for i, label in enumerate(R8.labels[1:], start=1):
            changed, squares = 0, []
            for k, (image, before) in enumerate(zip(x, plain, strict=True)):
                so_far = changed
                scores = model(R8.act(image[None], torch.tensor([i])))[0].numpy()
                if classes > 1:
                    changed += int(scores.argmax() != before.argmax())
                else:
                    changed += int((scores[0] > 0) != (before[0] > 0))
                agreeing[k] &= changed == so_far
                squares.append(np.mean((scores - before) ** 2))
            element = output.elements[label]
            assert abs(element.flip_rate - changed / 20) < 1e-12
            assert element.interval[0] <= element.flip_rate <= element.interval[1]
            np.testing.assert_allclose(element.logit_error, np.mean(squares) / plain.var(), rtol=1e-9)
    assert abs(output.agreement - agreeing.mean()) < 1e-12
    assert 0 < output.flip_rate < 1
