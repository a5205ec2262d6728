"""The loss of a copy that imitates a model."""

from __future__ import annotations

import pytest
import torch

import ien
from ien.adapting.imitation import Imitation
from tests.adapting.test_adapt import images, sided


def test_the_loss_of_a_step_is_the_formula() -> None:
    teacher, student = sided(), sided()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter += 0.1
    x = images(8)
    g = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    imitation = Imitation(ien.group("rot4"), "scores", {"2": 0.5}, head="5", features=3.0)
    loss = imitation.loss(teacher, student, x, g)
    scores = squares = wanted_squares = map_squares = 0.0
    for i in range(8):
        view = x[i : i + 1].rot90(int(g[i]), (2, 3))
        wanted, answer = teacher(x[i : i + 1]).softmax(1), student(view).log_softmax(1)
        scores += float((wanted * (wanted.log() - answer)).sum().detach()) / 8
        squares += float((teacher[:5](x[i : i + 1]) - student[:5](view)).square().sum().detach())
        wanted_squares += float(teacher[:5](x[i : i + 1]).square().sum().detach())
        moved = teacher[:3](x[i : i + 1]).rot90(int(g[i]), (2, 3))
        map_squares += float((moved - student[:3](view)).square().mean().detach()) / 8
    variance = float(teacher[:3](x).var(unbiased=False).detach())
    expected = scores + 3.0 * squares / wanted_squares + 0.5 * map_squares / variance
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
