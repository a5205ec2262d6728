"""The losses of a tracker, written out by hand."""

import pytest
import torch

from ien.tracking.training.losses import Siamese, balanced_loss, hits_target, target_positions
from ien.training.network import build
from tests.helpers import toy_clips
from tests.helpers.tracker_losses import is_target, loss_by_hand

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("size", [15, 29])
def test_the_loss_is_balanced_between_the_target_and_the_rest(size) -> None:
    expected = [[is_target(row, column, size) for column in range(size)] for row in range(size)]
    assert target_positions(size).tolist() == expected and int(target_positions(size).sum()) == 13
    responses = torch.randn(3, 1, size, size, dtype=torch.float64)
    assert abs(float(balanced_loss(responses)) - loss_by_hand(responses)) < 1e-12
    for quarters in range(4):  # otherwise views would need labels of their own
        assert torch.equal(target_positions(size), target_positions(size).rot90(quarters))


def test_a_pair_is_found_where_its_largest_response_is_on_the_target() -> None:
    responses = torch.zeros(4, 1, 29, 29)
    for k, place in enumerate([(14, 14), (12, 14), (13, 12), (0, 28)]):
        responses[k, 0][place] = 1
    assert hits_target(responses).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("backbone", "size"), [("alexnet-v1", 15), ("alexnet-v2", 29)])
def test_the_response_of_training_has_a_middle(backbone, size) -> None:
    model = Siamese(build(toy_clips.config(backbone=backbone)), None)
    responses, _, terms = model(torch.rand(2, 3, 127, 127), torch.rand(2, 3, 239, 239), None)
    assert responses.shape == (2, 1, size, size) and terms == []
