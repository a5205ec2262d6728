"""Classifiers as a task: whole orbits, subsets and augmented images, against loops."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ien
from ien._files import generator
from ien.experiments import config
from ien.training.classify import CLASSIFY, ClassifyTask
from ien.training.images import augmented
from ien.training.schedule import epoch_length
from tests.helpers import toy
from tests.helpers.configs import with_values
from tests.helpers.toy import task, trained

pytestmark = pytest.mark.usefixtures("toy_data")

TAPS = [f"conv{i}" for i in range(1, 7)]


def views_of(some: ClassifyTask, epochs: int) -> list[tuple[Tensor, Tensor]]:
    """For each step of so many epochs, which images it takes and the views that the network sees."""
    shown: list[Tensor] = []
    handle = some.network.register_forward_pre_hook(lambda module, inputs: shown.append(inputs[0]))
    places = list(itertools.product(range(epochs), range(some.steps)))
    batches = list(itertools.islice(some.batches(0, 0), len(places)))
    with torch.no_grad():
        for batch, place in zip(batches, places, strict=True):
            some.forward(batch, *place)
    handle.remove()
    return list(zip(batches, shown, strict=True))


def test_a_step_shows_every_rotation_of_half_as_many_images() -> None:
    seen = views_of(task(orbits=True), 2)
    pairs = views_of(task(), 1)
    x = toy.dataset().train_x.float() / 255
    assert len(seen) == 2 * len(pairs)
    for (batch, views), (_, as_pairs) in zip(seen[:6], pairs, strict=True):
        assert len(views) == len(as_pairs) == 32 and len(batch) == 8
        for k, image in enumerate(batch):
            # the views of an image lie where its label is repeated
            shown = views[k::8].flatten(1).tolist()
            rotated = [torch.rot90(x[image], n, (-2, -1)).flatten().tolist() for n in range(4)]
            assert sorted(shown) == sorted(rotated)


def test_two_epochs_of_whole_orbits_show_each_image_once() -> None:
    some = task(orbits=True, epochs=4)
    rounds = torch.cat(list(some.batches(0, 0))).view(2, 96)
    assert some.items == 48 and rounds.sort().values.tolist() == [list(range(96))] * 2
    assert not torch.equal(*rounds)
    assert torch.equal(torch.cat(list(some.batches(1, 4))), rounds.flatten()[80:])
    # steps with one copy go through an order of their own in each epoch
    order = [torch.randperm(96, generator=generator(1, "order", e)) for e in range(2)]
    assert torch.equal(torch.cat(list(itertools.islice(task().batches(0, 0), 12))), torch.cat(order))


@pytest.mark.parametrize("action", ["pooled", "regular"])
def test_a_step_equals_a_loop_over_the_turns(action) -> None:
    some, twin = (task(orbits=True, action=action, beta=0.3) for _ in range(2))
    batch = torch.arange(5, 13)
    some.forward(batch, 0, 1).loss.backward()
    x, y = toy.dataset().train_x[5:13].float() / 255, toy.dataset().train_y[5:13]
    with ien.capture(twin.network, TAPS) as features:
        output = twin.network(torch.cat([torch.rot90(x, turns, (-2, -1)) for turns in range(4)]))
    loss = F.cross_entropy(output, y.repeat(4))
    for name in TAPS:
        first, *others = features[name].unflatten(1, (-1, 4)).chunk(4)  # (B, N, members, H, W)
        for turns, h_g in enumerate(others, start=1):
            moved = torch.rot90(first, turns, (-2, -1))
            if action == "pooled":
                error = F.mse_loss(h_g.amax(2), moved.amax(2))
            else:
                error = F.mse_loss(h_g, moved.roll(turns, 2))
            loss = loss + 0.3 * error / 3
    loss.backward()
    expected = {name: weight.grad for name, weight in twin.network.named_parameters()}
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, weight in some.network.named_parameters():
        assert float((weight.grad - expected[name]).norm()) < 1e-4 * largest, name


@pytest.mark.parametrize(
    ("group", "images", "batch_size", "processes", "expected"),
    [
        ("rot4", 12_000, 64, 1, (188, 6000)),
        ("rot8", 10_000, 32, 1, (313, 2500)),
        ("flip", 1000, 32, 1, (32, 1000)),  # a pair is an orbit
        ("rot4xflip", 1000, 32, 1, (32, 250)),
        ("rot4+flip", 1000, 32, 1, (32, 600)),  # 3 views of each with a copy for each group, or all 5
        ("rot8", 104, 8, 2, (13, 26)),
    ],
)
def test_an_epoch_has_the_views_of_pairs(group, images, batch_size, processes, expected) -> None:
    config = toy.config(group=group, orbits=True, batch_size=batch_size, beta=0.0)
    objective = ien.EquivarianceLoss(dict(config.objective.groups), [], 4, samples="all")
    assert epoch_length(config, images, objective.views, processes) == expected
    pairs = toy.config(group=group, batch_size=batch_size, beta=0.0)
    assert epoch_length(pairs, images, 2, processes) == (expected[0], images)


@pytest.mark.parametrize(("group", "processes"), [("rot4", 3), ("rot8", 1), ("rot8", 3), ("rot4+flip", 2)])
def test_too_few_images_for_an_orbit_name_the_smallest_batch(group, processes) -> None:
    def length(images: int, batch_size: int) -> tuple[int, int]:
        config = toy.config(group=group, orbits=True, batch_size=batch_size, beta=0.0)
        return epoch_length(config, images, views, processes)

    groups = toy.config(group=group).objective.groups
    views = 1 + sum(len(each) - 1 for each in groups)
    with pytest.raises(ValueError, match=r"set it to \d+ or more") as caught:
        length(96, 2)
    smallest = int(str(caught.value).split()[-3])
    with pytest.raises(ValueError, match=f"set it to {smallest} or more"):
        length(96, smallest - 1)
    steps, items = length(96, smallest)
    # as many views as pairs have, but for rounding, and an orbit in each step of each process
    assert abs(items * views - 96 * (1 + len(groups))) <= views / 2 and items >= steps * processes
    with pytest.raises(ValueError, match="train on more images"):
        length(2, 2)


def test_a_subset_is_dealt_out_over_and_over_in_epochs_as_long_as_ever() -> None:
    some, all_ = task(subset=20), task()
    batches = list(some.batches(0, 0))
    assert (some.steps, some.items) == (all_.steps, all_.items) == (6, 96)
    assert list(map(len, batches)) == list(map(len, all_.batches(0, 0))) == [16] * 18
    dealt = torch.cat(batches)
    rounds = [part.tolist() for part in dealt.split(20)]
    drawn = sorted(rounds[0])
    assert len(set(drawn)) == 20 and all(sorted(part) == drawn for part in rounds[:-1])
    assert rounds[0] != rounds[1] and set(rounds[-1]) < set(drawn)
    assert torch.equal(torch.cat(list(some.batches(1, 4))), dealt[96 + 64 :])


def test_each_seed_draws_a_subset_of_its_own_and_a_larger_one_holds_it() -> None:
    def drawn(**changes: Any) -> set[int]:
        return set(torch.cat(list(task(**changes).batches(0, 0))).tolist())

    first = drawn(subset=20)
    assert first == drawn(subset=20, beta=0.0, tie="start") < drawn(subset=40)
    assert first != drawn(subset=20, seed=2) and first != set(range(20))
    assert drawn(subset=20, train_images=30) < set(range(30))


def test_a_subset_of_all_changes_nothing(tmp_path, finished) -> None:
    all_ = trained(tmp_path / "all", subset=96)
    metrics = [(path / "metrics.jsonl").read_bytes() for path in (tmp_path / "all", finished)]
    assert metrics[0] == metrics[1]
    assert all_.images_seen == 3 * 96 * 2
    assert trained(tmp_path / "few", subset=20, epochs=2).images_seen == 2 * 96 * 2
    toy.assert_same(all_.network, ien.load(finished))


def test_validation_images_are_the_last_of_the_training_set(tmp_path) -> None:
    settings = {"test_on": "validation", "validation_images": 30, "test_images": 20}
    record = toy.run_in(tmp_path, epochs=1, cycle_epochs=1, **settings)
    assert record["data"]["train"] == 66 and record["data"]["test"] == 20
    data, model = toy.dataset(), ien.load(tmp_path)
    hits = model(data.train_x[66:86] / 255).argmax(1) == data.train_y[66:86]
    assert abs(record["accuracy"] - hits.float().mean().item()) < 1e-6


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"train_images": 97}, "train_images is 97, but random toy has 96 of them"),
        ({"subset": 97}, "subset is 97, but random toy has 96 of them"),
        ({"subset": 60, "train_images": 50}, "subset is 60, but random toy has 50 of them"),
        ({"test_images": 41}, "test_images is 41, but random toy has 40 of them"),
        ({"test_on": "validation", "validation_images": 95}, r"validation_images \(95\) leaves none of 96"),
        ({"classes": 7}, "toy has 10 classes; the configuration says 7"),
        ({"channels": 3}, "images of toy have 1 channels, the configuration says 3: --set channels=1"),
    ],
)
def test_more_images_than_there_are_is_an_error_at_once(tmp_path, changes, match) -> None:
    with pytest.raises(ValueError, match=match):
        toy.run_in(tmp_path, **changes)
    assert not (tmp_path / "config.json").exists()


def test_a_batch_of_one_image_is_refused_where_batchnorm_needs_more() -> None:
    with pytest.raises(ValueError, match="single image, too few for BatchNorm: set it to 4 or more"):
        task(augment=False, beta=0.0, batch_size=2, train_images=3)
    task(batch_size=2, train_images=3)  # with its view an image is not alone


def test_what_happens_to_an_image_does_not_depend_on_the_processes() -> None:
    settings = with_values(config("stl10/ien", "small"), rotate=True, rescale=2.0, transform=True)
    x, colour = torch.rand(10, 3, 24, 24), torch.rand(3)
    whole = augmented(settings, x, 10, slice(0, 10), (3, 4), colour)
    parts = [augmented(settings, x[s], 10, s, (3, 4), colour) for s in (slice(0, 6), slice(6, 10))]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(augmented(settings, x, 10, slice(0, 10), (3, 5), colour), whole)


def test_training_images_are_changed_as_the_configuration_says() -> None:
    plain = with_values(config("stl10/wrn", "small"), shift=0, mirror=False, cutout=0)
    x, colour = torch.rand(400, 1, 12, 12) + 1, torch.zeros(1)  # zeros only where something was cut off

    def changed(**settings: object) -> torch.Tensor:
        return augmented(with_values(plain, **settings), x, 400, slice(0, 400), (0, 0), colour)

    assert torch.equal(changed(), x)
    mirrored = (changed(mirror=True) == x.flip(3)).all((1, 2, 3))
    assert 150 < int(mirrored.sum()) < 250
    turned = changed(transform=True, group="rot4")
    places = torch.stack([(turned == x.rot90(k, (2, 3))).all((1, 2, 3)) for k in range(4)])
    assert places.sum(1).tolist() == [100] * 4 and places.sum(0).tolist() == [1] * 400
    shifted = changed(shift=2)
    empty = (shifted == 0).all(3).sum(2).flatten()  # rows
    assert set(empty.tolist()) == {0, 1, 2}
    holes = (changed(cutout=4) == 0).sum((1, 2, 3))
    assert int(holes.max()) == 16 and int(holes.min()) == 4  # whole, and with its centre in a corner
    x = torch.ones(400, 1, 64, 64)
    scaled = changed(rescale=2.0)
    factors = 0.5 + 1.5 * torch.rand(400, generator=generator(plain.seed, "factors", 0, 0))
    sides = (scaled[:, 0, 32] > 0.5).sum(1) / 64
    assert (sides - factors.clamp(max=1)).abs().max() < 1.5 / 64


def test_each_seed_of_a_row_on_scaled_digits_is_a_realisation_of_its_own() -> None:
    first = with_values(config("scale-mnist/28-cnn", "smoke"), seed=1)
    again, other = with_values(first, max_lr=0.1), with_values(first, seed=2)
    same, also, different = (CLASSIFY.load(each, "embedded").train_x for each in (first, again, other))
    assert torch.equal(same, also) and not torch.equal(same, different)
    fixed = [CLASSIFY.load(with_values(each, data_seed=3), "embedded").train_x for each in (first, other)]
    assert torch.equal(*fixed)
