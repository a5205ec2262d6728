"""The learning rate against tables written down step by step."""

import math

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


@pytest.mark.parametrize("cycle", [40, 60])
def test_other_cycles_and_ranges_are_fields(cycle) -> None:
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


def test_shorter_runs_keep_the_shape_of_the_cycle_down_to_one_step() -> None:
    config = change(PAPER, ["epochs=9"])
    rates = [learning_rate(config, step, STEPS) for step in range(9 * STEPS)]
    assert config.schedule.cycle_epochs == 7 and max(rates) == 5e-3 and rates[-1] == 1e-5
    assert [learning_rate(change(PAPER, ["epochs=1"]), step, 1) for step in (0, 1)] == [1e-5, 1e-5]


@pytest.mark.parametrize(("name", "epochs"), [("rot-mnist/e2cnn", 90), ("tracking/ien-siamfc", 150)])
def test_three_times_as_long_an_exponential_falls_as_far_a_third_as_fast(name, epochs) -> None:
    short = experiments.config(name, "paper")
    long = change(short, [f"epochs={epochs}"])
    for epoch in range(short.schedule.epochs):
        assert math.isclose(learning_rate(long, 7 * 3 * epoch, 7), learning_rate(short, 7 * epoch, 7))
    again = change(long, [f"epochs={short.schedule.epochs}"])
    assert again.schedule.decay == pytest.approx(short.schedule.decay)
    assert change(short, [f"epochs={short.schedule.epochs}"]) == short


def test_a_decay_that_is_given_or_that_no_schedule_had_is_left_as_it_is() -> None:
    short = experiments.config("tracking/ien-siamfc", "paper")
    assert change(short, ["epochs=10", "decay=0.5"]).schedule.decay == 0.5
    assert change(short, ["epochs=10", "decay_after=4"]).schedule.decay_after == 4
    assert change(PAPER, ["epochs=10", "schedule=exponential"]).schedule.decay == PAPER.schedule.decay
    small = experiments.config("tracking/ien-siamfc", "small").schedule
    assert change(short, [f"epochs={small.epochs}"]).schedule.decay == pytest.approx(small.decay)


def test_the_rate_falls_in_steps_and_a_shorter_run_keeps_their_shape() -> None:
    steps = change(experiments.config("scale-mnist/28-ien", "paper"), ["max_lr=0.01"])
    rates = [learning_rate(steps, epoch * 7 + 3, 7) for epoch in range(60)]
    assert rates == pytest.approx([0.01] * 20 + [0.001] * 20 + [0.0001] * 20)
    shorter = change(steps, ["epochs=6"])
    assert shorter.schedule.steps_after == "2,4" and shorter.schedule.step_epochs == (2, 4)
    assert [change(shorter, [f"epochs={n}"]).schedule.steps_after for n in (2, 1)] == ["1", "1"]
    with pytest.raises(ValueError, match=r"steps_after \(20,40\) must lie within the 6 epochs"):
        change(shorter, ["steps_after=20,40"])
    with pytest.raises(ValueError, match="steps_after must list epochs, such as 20,40; got 'soon'"):
        change(shorter, ["steps_after=soon"])
