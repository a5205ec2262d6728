"""The notebooks of examples/ run, show what was saved, and hold nothing of the machine they ran on."""

import base64
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.notebooks import code_cells, run_cell

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["aerial_images", "rotation_safe"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("elsewhere", "one_thread")
def test_a_notebook_runs_and_shows_what_was_saved(path, capsys, monkeypatch) -> None:
    """Training is cut short; all else is as in the file, whose outputs have the same kinds."""
    for name in ("matplotlib", "pandas", "PIL"):
        pytest.importorskip(name)
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: None)
    names = {"__name__": "__main__"}
    for cell in code_cells(path):
        source = re.sub(r"steps=\d+", "steps=3", "".join(cell["source"]))
        value = run_cell(source, names)
        printed = capsys.readouterr().out
        saved = cell["outputs"]
        assert bool(printed) == any(output["output_type"] == "stream" for output in saved), source
        results = [output["data"] for output in saved if output["output_type"] == "execute_result"]
        assert len(results) == (value is not None), source
        if value is not None:
            assert ("text/html" in results[0]) == (getattr(value, "_repr_html_", lambda: None)() is not None)
            assert ("image/png" in results[0]) == hasattr(value, "_repr_png_")
        drawn = [output for output in saved if output["output_type"] == "display_data"]
        assert len(drawn) == len(plt.get_fignums())
        plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_outputs_are_there_small_and_of_no_machine(path) -> None:
    text = path.read_text()
    assert not re.findall(r"/(home|root|tmp|work|usr|Users)/|site-packages|Traceback", text)
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    pictures = []
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] in ("stream", "execute_result", "display_data")
            assert output.get("name") != "stderr"
            if "image/png" in output.get("data", {}):
                pictures.append(base64.b64decode(output["data"]["image/png"]))
    assert len(pictures) >= 2 and all(len(picture) < 100_000 for picture in pictures)
    assert sum(bool(cell["outputs"]) for cell in cells) >= 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        for target in re.findall(r"\]\(([^)#]+)\)", "".join(cell["source"])):
            assert target.startswith("https://") or (path.parent / target).exists(), target


def test_the_aerial_notebook_reads_a_folder_of_pictures_for_each_class(tmp_path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need pillow: pip install 'ien[plots]'")
    pytest.importorskip("matplotlib")
    for name, colour in {"b": (255, 0, 0), "a": (0, 0, 255)}.items():
        (tmp_path / name).mkdir()
        for i in range(2):
            image.new("RGB", (40, 30), colour).save(tmp_path / name / f"{i}.png")
    names: dict[str, object] = {}
    run_cell("".join(code_cells(FOLDER / "aerial_images.ipynb")[0]["source"]), names)
    images, labels, classes = names["read_folder"](tmp_path, size=8)
    assert images.shape == (4, 3, 8, 8) and classes == ["a", "b"]
    for x, label in zip(images, labels.tolist(), strict=True):
        assert torch.equal(x, torch.eye(3)[2 - 2 * label].view(3, 1, 1).expand(3, 8, 8))
    assert "PIL" in sys.modules
