"""The learning rate against tables written down step by step."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from ien import experiments
from ien.training import change
from ien.training.schedule import learning_rate

PAPER = experiments.config("rot-mnist/ien-r4", "paper")
STEPS = math.ceil(12_000 / 64)


def table(cycle: int, low: float, high: float) -> list[float]:
    """Learning rates of a cycle of so many steps: a quarter rising by a cosine, the rest falling by one."""
    rates = []
    for t in range(cycle):
        if 4 * t < cycle:
            rates.append(low + (high - low) * (1 - math.cos(math.pi * t / (cycle / 4))) / 2)
        else:
            rates.append(low + (high - low) * (1 + math.cos(math.pi * (t - cycle / 4) / (3 * cycle / 4))) / 2)
    return rates


def test_paper_cycle_equals_its_formula_at_every_step() -> None:
    rates = [learning_rate(PAPER, step, STEPS) for step in range(90 * STEPS)]
    expected = table(70 * STEPS, 1e-5, 5e-3) + [1e-5] * 20 * STEPS
    assert len(rates) == len(expected) == 90 * 188
    assert max(abs(a - b) for a, b in zip(rates, expected, strict=True)) < 1e-17
    assert rates[0] == 1e-5 and rates[70 * STEPS // 4] == max(rates) == 5e-3
    assert set(rates[70 * STEPS :]) == {1e-5} and 1e-5 < rates[70 * STEPS - 1] < 1.0001e-5


def test_cycle_rises_for_a_quarter_and_falls_for_three() -> None:
    rates = [learning_rate(PAPER, step, STEPS) for step in range(70 * STEPS)]
    peak = rates.index(max(rates))
    assert abs(peak - 70 * STEPS / 4) <= 0.5
    assert all(a < b for a, b in pairwise(rates[: peak + 1]))
    assert all(a > b for a, b in pairwise(rates[peak:]))


@pytest.mark.parametrize("cycle", [40, 60])
def test_other_cycles_and_ranges_are_fields(cycle: int) -> None:
    config = change(PAPER, [f"cycle_epochs={cycle}", "max_lr=1e-2", "min_lr=1e-4", "weight_decay=1e-5"])
    expected = table(cycle * 7, 1e-4, 1e-2) + [1e-4] * (90 - cycle) * 7
    rates = [learning_rate(config, step, 7) for step in range(90 * 7)]
    assert max(abs(a - b) for a, b in zip(rates, expected, strict=True)) < 1e-16
    assert config.optimizer.weight_decay == 1e-5


def test_exponential_is_flat_for_ten_epochs_and_then_decays_by_a_fifth_each() -> None:
    config = experiments.config("rot-mnist/e2cnn", "paper")
    rate, expected = 1e-3, []
    for epoch in range(1, config.schedule.epochs + 1):
        rate = rate * 0.8 if epoch > 10 else rate
        expected += [rate] * 3
    rates = [learning_rate(config, step, 3) for step in range(3 * config.schedule.epochs)]
    assert config.schedule.epochs == 30 and rates[:30] == [1e-3] * 30
    assert max(abs(a / b - 1) for a, b in zip(rates, expected, strict=True)) < 1e-13


def test_shorter_runs_keep_the_shape_of_the_cycle() -> None:
    config = change(PAPER, ["epochs=9"])
    rates = [learning_rate(config, step, STEPS) for step in range(9 * STEPS)]
    assert config.schedule.cycle_epochs == 7 and max(rates) == 5e-3 and rates[-1] == 1e-5


@pytest.mark.parametrize(("name", "epochs"), [("rot-mnist/e2cnn", 90), ("tracking/ien-siamfc", 150)])
def test_three_times_as_long_an_exponential_falls_as_far_a_third_as_fast(name: str, epochs: int) -> None:
    short = experiments.config(name, "paper")
    long = change(short, [f"epochs={epochs}"])
    for epoch in range(short.schedule.epochs):
        assert math.isclose(learning_rate(long, 7 * 3 * epoch, 7), learning_rate(short, 7 * epoch, 7))
    assert change(long, [f"epochs={short.schedule.epochs}"]).schedule.decay == pytest.approx(
        short.schedule.decay
    )
    assert change(short, [f"epochs={short.schedule.epochs}"]) == short


def test_a_decay_that_is_given_or_that_no_schedule_had_is_left_as_it_is() -> None:
    short = experiments.config("tracking/ien-siamfc", "paper")
    assert change(short, ["epochs=10", "decay=0.5"]).schedule.decay == 0.5
    assert change(short, ["epochs=10", "decay_after=4"]).schedule.decay_after == 4
    assert change(PAPER, ["epochs=10", "schedule=exponential"]).schedule.decay == PAPER.schedule.decay
    with pytest.raises(ValueError, match="epochs must be 1 to"):
        change(short, ["epochs=0"])
    small = experiments.config("tracking/ien-siamfc", "small")
    assert change(short, [f"epochs={small.schedule.epochs}"]).schedule.decay == pytest.approx(
        small.schedule.decay
    )


def test_a_cycle_of_one_step_is_a_number() -> None:
    config = change(PAPER, ["epochs=1"])
    assert learning_rate(config, 0, 1) == 1e-5 and learning_rate(config, 1, 1) == 1e-5


def test_the_learning_rate_falls_in_steps() -> None:
    steps = change(experiments.config("scale-mnist/28-ien", "paper"), ["max_lr=0.01"])
    rates = [learning_rate(steps, epoch * 7 + 3, 7) for epoch in range(60)]
    assert rates == pytest.approx([0.01] * 20 + [0.001] * 20 + [0.0001] * 20)


def test_a_shorter_run_keeps_the_shape_of_its_steps() -> None:
    shorter = change(experiments.config("scale-mnist/28-ien", "paper"), ["epochs=6"])
    assert shorter.schedule.steps_after == "2,4" and shorter.schedule.step_epochs == (2, 4)
    assert [change(shorter, [f"epochs={n}"]).schedule.steps_after for n in (2, 1)] == ["1", "1"]
    with pytest.raises(ValueError, match=r"steps_after \(20,40\) must lie within the 6 epochs"):
        change(shorter, ["steps_after=20,40"])
    with pytest.raises(ValueError, match="steps_after must list epochs, such as 20,40; got 'soon'"):
        change(shorter, ["steps_after=soon"])
