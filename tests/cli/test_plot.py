"""The commands ``ien plot`` on toy runs: what they write, and how they end when something is wrong."""

import shutil
from pathlib import Path

import pytest

from tests.helpers import toy
from tests.helpers.shell import error_of, invoke

pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'ien[plots]'")
pytestmark = [pytest.mark.usefixtures("elsewhere", "toy_data"), pytest.mark.slow]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two finished toy runs, with the loss and without."""
    betas = {
        tmp_path_factory.mktemp("plots") / name: beta for name, beta in (("ien-r4", 1.0), ("cnn-aug", 0.0))
    }
    processes = [toy.start(toy.train, folder, "", {"beta": beta}) for folder, beta in betas.items()]
    assert [toy.finish(process) for process in processes] == [0, 0]
    return list(betas)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("features", ["--layers", "conv1,conv2", "--image", "1", "--group", "rot4"]),
        ("errors", ["--number", "8"]),
        ("angles", ["--number", "8", "--step", "45"]),
        ("factors", ["--number", "4", "--reach", "1.5", "--steps", "2"]),
        ("training", []),
    ],
)
def test_plots_of_runs_are_written_as_png_and_svg(runs, kind, options) -> None:
    done = invoke("plot", kind, *runs, *options, "--out", f"here/{kind}.png")
    assert done.stdout.splitlines() == [f"wrote here/{kind}.png", f"wrote here/{kind}.svg"]
    assert Path(f"here/{kind}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path(f"here/{kind}.svg").read_text()


def test_costs_are_drawn_from_records_or_run_folders(runs) -> None:
    invoke("plot", "costs", runs[0].parent)
    assert Path("plots/costs.png").exists() and Path("plots/costs.svg").exists()
    assert "no records of preset 'paper'" in error_of("plot", "costs", runs[0].parent, "--preset", "paper")
    assert "no records of *" in error_of("plot", "costs", ".")
    assert "there is no folder nowhere" in error_of("plot", "costs", "nowhere")


def test_runs_of_one_name_are_told_apart_and_a_run_is_drawn_once(runs) -> None:
    copy = runs[0].parent / "copy"
    shutil.copytree(runs[0], copy, dirs_exist_ok=True)
    invoke("plot", "errors", runs[0], copy, "--number", "4", "--out", "two")
    text = Path("two.svg").read_text()
    assert "copy)" in text and "ien-r4)" in text
    assert "was given twice" in error_of("plot", "errors", copy, copy)


def test_bad_input_is_one_line(runs) -> None:
    assert "is not a run folder" in error_of("plot", "features", ".")
    assert "conv9" in error_of("plot", "features", runs[0], "--layers", "conv9")
    assert "images 0 to 39" in error_of("plot", "features", runs[0], "--image", "40")
    assert "--step must divide 360" in error_of("plot", "angles", runs[0], "--step", "7")
    assert "--reach must be 1.01 to 100" in error_of("plot", "factors", runs[0], "--reach", "0.5")
