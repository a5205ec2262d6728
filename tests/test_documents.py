"""What is written runs: README blocks, examples; and what is promised of the package as a whole."""

import ast
import copy
import importlib
import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ien

ROOT = Path(__file__).parents[1]
NET = """
from collections import OrderedDict
from torch import nn

def build():
    layers = OrderedDict()
    for i, channels in enumerate([3, 8, 8, 8], start=1):
        layers[f"layer{i}"] = nn.Sequential(nn.Conv2d(channels, 8, 3, stride=2, padding=1), nn.ReLU())
    layers["classify"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return nn.Sequential(layers)
"""
"""The reader's net.py."""


def blocks_of(page: str) -> list[str]:
    """Return the blocks of Python on a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run_blocks(page: str, names: dict[str, object], count: int) -> dict[str, object]:
    """Run the ``count`` blocks of Python on a page, in order."""
    blocks = blocks_of(page)
    assert len(blocks) == count
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def readme_names() -> dict[str, object]:
    """What the README takes for granted: the reader's model, data and functions."""
    model = nn.Sequential()
    for i, channels in enumerate([3, 24, 24, 24], start=1):
        model.add_module(f"layer{i}", nn.Sequential(nn.Conv2d(channels, 24, 3, padding=1), nn.ReLU()))
    model.add_module("classify", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 8)))
    x, y = torch.rand(6, 3, 9, 9), torch.randint(8, (6,))
    return {
        "torch": torch,
        "model": model,
        "loader": [(x, y)],
        "images": x,
        "rng": torch.Generator().manual_seed(0),
        "hide_left": lambda z: z * (torch.arange(z.shape[-1]) >= z.shape[-1] // 2),
        "hide_right": lambda z: z * (torch.arange(z.shape[-1]) < z.shape[-1] // 2),
    }


@pytest.mark.usefixtures("elsewhere")
def test_readme_runs_from_top_to_bottom(capsys) -> None:
    names = readme_names()
    before = [p.clone() for p in names["model"].parameters()]
    run_blocks("README.md", names, 3)
    printed = capsys.readouterr().out
    assert "equivariant to rot4: stores" in printed and "equivariance to rot4 over 6 images" in printed
    assert "quarter turns and flips at 64×64: exact" in printed
    assert any(not torch.equal(p, q) for p, q in zip(before, names["model"].parameters(), strict=True))
    assert names["tied"].listens and set(names["tied"].slack().values()) == {0.0}


def test_the_page_on_the_loss_runs(capsys) -> None:
    more = {"ien": ien, "F": torch.nn.functional, "net": readme_names()["model"], "epochs": 2}
    names = readme_names() | more
    before = [p.clone() for p in names["model"].parameters()]
    run_blocks("docs/loss.md", names, 6)
    assert max(names["tied"].check(names["images"]).values()) < 1e-6
    assert "88" in capsys.readouterr().out
    assert any(not torch.equal(p, q) for p, q in zip(before, names["model"].parameters(), strict=True))
    assert isinstance(names["loss"], Tensor) and isinstance(names["occlude"], ien.Group)


def test_the_first_snippet_of_the_readme_leaves_an_ordinary_model_that_is_equivariant() -> None:
    names = readme_names()
    model, images = names["model"], names["images"]
    before = copy.deepcopy(model)
    exec(compile(blocks_of("README.md")[0], "README.md", "exec"), names)
    assert list(model.state_dict()) == list(before.state_dict())
    assert [type(m) for m in model.modules()] == [type(m) for m in before.modules()]

    def error(net: nn.Sequential) -> float:
        """How far the pooled maps of a rotated image are from the rotated maps of the image."""
        with torch.no_grad():
            h, h_g = (net[:4](x).unflatten(1, (6, 4)).amax(2) for x in (images, images.rot90(1, (-2, -1))))
        return float((h_g - h.rot90(1, (-2, -1))).square().mean() / h.var())

    assert error(before) > 1e-2 and error(model) < 1e-10


@pytest.mark.usefixtures("elsewhere")
def test_the_page_on_the_method_runs(capsys) -> None:
    more = {"ien": ien, "F": torch.nn.functional, "net": readme_names()["model"], "epochs": 2}
    more["segmenter"] = nn.Sequential()
    more["segmenter"].add_module("decoder", nn.Conv2d(3, 8, 3, padding=1))
    more["segmenter"].add_module("head", nn.Conv2d(8, 5, 1))
    more["masks"] = torch.randint(5, (6, 9, 9))
    names = run_blocks("docs/method.md", readme_names() | more, 6)
    printed = capsys.readouterr().out
    assert "{('rot4', 'layer1'): 0.01, ('rot4', 'layer2'): 0.01}" in printed
    assert "equivariant to rot4: stores" in printed
    *_, multipliers = torch.load("training.pt")
    names["objective"].load_state_dict(multipliers)
    plain = readme_names()["model"]
    plain.load_state_dict(torch.load("weights.pt"))
    torch.testing.assert_close(plain(names["images"]), names["model"](names["images"]))
    tied, optimizer = torch.load("resume.pt")
    names["model"].load_state_dict(tied)
    torch.optim.AdamW(names["model"].parameters()).load_state_dict(optimizer)
    assert names["tied"].slack()["layer2.0"] == 0 and names["tied"].evidence()[""].steps == 1
    assert names["views"].shape == names["images"].shape and names["rotated"].shape == (6, 9, 9)
    assert names["targets"].shape == (12, 9, 9) and (names["targets"] == 255).any()


@pytest.mark.usefixtures("elsewhere")
def test_the_guide_to_looking_runs(capsys) -> None:
    run_blocks("docs/looking.md", readme_names() | {"ien": ien}, 4)
    printed = capsys.readouterr().out
    assert "\nfrom 'state_dict', without the prefix 'module.'\n" in printed
    assert "at 224×224: exact" in printed and Path("report/report.json").exists()
    assert "×0.7 " in printed and "equivariance to scale0.7,0.84,1.2,1.4 over 6 images" in printed


@pytest.mark.usefixtures("elsewhere", "one_thread")
@pytest.mark.filterwarnings("ignore")  # Lightning's own: about workers, devices and torch's newest names
def test_the_page_on_your_own_loop_runs(capsys, monkeypatch) -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning: pip install 'ien[lightning]'")
    from tests.measuring.callbacks.test_callbacks import Trainer

    class Module(lightning.LightningModule):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch, index):
            x, y = batch
            return torch.nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    written: dict[str, list[float]] = {}

    class Logger:
        """In place of TensorBoard's, which tests/test_loggers.py reads back, and of W&B's.

        What wandb 0.31 writes offline cannot be read back by its public names; ``log`` has its signature.
        """

        def __init__(self, *args, **kwargs) -> None:
            pass

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.setdefault(f"tensorboard {name}", []).append(value)

        def log(self, data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:
            for name, value in data.items():
                written.setdefault(f"wandb {name}", []).append(value)

    names = readme_names()
    trainer = Trainer(names["model"])
    blocks = blocks_of("docs/loop.md")
    assert len(blocks) == 6
    names |= {"ien": ien, "F": torch.nn.functional, "module": Module(copy.deepcopy(names["model"]))}
    names["loader"] = DataLoader(TensorDataset(*names["loader"][0]), batch_size=6)  # Lightning takes no list
    for block in blocks:
        if "add_callback" in block:
            monkeypatch.setattr(trainer, "train", lambda: Trainer.train(trainer, 5))
            names["trainer"] = trainer  # the trainer of Hugging Face; the block before has Lightning's
        for name, content in {"torch.utils.tensorboard": "SummaryWriter", "wandb": "init"}.items():
            if content in block:  # not before: Lightning writes to TensorBoard by itself
                stand_in = types.ModuleType(name)
                setattr(stand_in, content, Logger)
                monkeypatch.setitem(sys.modules, name, stand_in)
        exec(compile(block, "docs/loop.md", "exec"), names)
    assert "equivariance/rot4/output/flip_rate" in capsys.readouterr().out
    assert list(names["watch"].reports) == [5, 10] and len(trainer.state.log_history) == 1
    now = ien.measure(names["model"], names["images"], "rot4", floors=False).scalars()
    for logger in ("tensorboard", "wandb"):
        assert len(written[f"{logger} terms/rot4/layer4"]) == 1
        assert {name: written[f"{logger} {name}"][-1] for name in now} == pytest.approx(now)


def guide_names() -> dict[str, object]:
    """What the guides take for granted: more channels than the README, and masks."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for i, channels in enumerate([3, 48, 48, 48], start=1):
        model.add_module(f"layer{i}", nn.Sequential(nn.Conv2d(channels, 48, 3, padding=1), nn.ReLU()))
    model.add_module("classify", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 8)))
    tied = copy.deepcopy(model)
    x, y = torch.rand(6, 3, 9, 9), torch.randint(8, (6,))
    ien.make_equivariant(tied, "rot4", x)
    return {
        "ien": ien,
        "torch": torch,
        "F": torch.nn.functional,
        "model": model,
        "tied_model": tied,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "loader": [(x, y)],
        "images": x,
        "masks": torch.randint(2, (6, 9, 9)),
    }


# pages whose blocks need nothing but guide_names(), and how many blocks each has
SIMPLE_PAGES = {
    "index": 1,
    "guides/aerial": 1,
    "guides/cells": 2,
    "guides/sizes": 1,
    "guides/gate": 1,
    "guides/clusters": 1,
    "guides/transformation": 2,
    "guides/heterogeneous": 2,
    "concepts/equivariance": 1,
    "concepts/feature-groups": 1,
    "concepts/exact": 1,
    "concepts/error": 1,
    "concepts/slack": 1,
}


@pytest.mark.usefixtures("elsewhere", "one_thread")
@pytest.mark.parametrize("page", SIMPLE_PAGES)
def test_the_blocks_of_a_page_run(page) -> None:
    run_blocks(f"docs/{page}.md", guide_names(), SIMPLE_PAGES[page])


@pytest.mark.usefixtures("elsewhere", "one_thread")
def test_the_guide_to_exporting_runs(capsys) -> None:
    pytest.importorskip(
        "onnxscript", reason="needs onnx, onnxscript and onnxruntime: pip install 'ien[export]'"
    )
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'ien[export]'")
    names = run_blocks("docs/guides/export.md", guide_names(), 5)
    printed = capsys.readouterr().out
    assert "net.onnx: ONNX opset" in printed and "6 images under rot4" in printed
    with torch.no_grad():
        expected = ien.plain_copy(names["model"]).eval()(names["images"])
    torch.testing.assert_close(torch.from_numpy(names["scores"]), expected, atol=1e-5, rtol=1e-4)
    assert names["small"].versions["int8"].difference < 0.1
    assert {path.name for path in Path().iterdir()} == {"net.onnx", "net8.onnx", "net.safetensors"}


def test_every_block_of_python_in_the_documents_is_run_by_some_test() -> None:
    tested = {f"docs/{page}.md" for page in SIMPLE_PAGES}
    tested |= {
        f"docs/{page}.md" for page in ("method", "loss", "looking", "loop", "pretrained", "train", "doctor")
    }
    tested |= {"docs/tracking.md", "docs/guides/export.md"}
    pages = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))]
    assert {page for page in pages if blocks_of(page)} == tested


def messages_in_the_code() -> str:
    """Return every string in src/, a line each; … stands for what is filled in."""
    lines = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                lines.append("".join(parts))
    return "\n".join(lines)


def test_the_errors_that_the_faq_explains_are_those_of_the_code() -> None:
    quoted = re.findall(r"^### `(.+)`$", (ROOT / "docs/faq.md").read_text(), flags=re.MULTILINE)
    assert len(quoted) >= 20
    known = messages_in_the_code()
    for message in quoted:
        assert message in known, message


def test_the_page_of_commands_is_what_the_command_line_says() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        page = importlib.import_module("commands").page()
    finally:
        sys.path.remove(str(ROOT / "docs"))
    assert (ROOT / "docs/commands.md").read_text() == page, "run python docs/commands.py"


def test_the_reference_has_every_public_name_once() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / "docs/reference").glob("*.md")))
    elsewhere = {"callbacks": "measuring.callbacks", "load": "training.load"}
    elsewhere |= {"export": "exporting.export.export", "Exported": "exporting.result.Exported"}
    names = sorted(f"ien.{elsewhere.get(name, name)}" for name in ien.__all__)
    assert sorted(re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)) == names


@pytest.mark.usefixtures("one_thread")
def test_the_page_on_trained_models_runs(capsys) -> None:
    torch.manual_seed(0)
    run_blocks("docs/pretrained.md", {}, 3)
    printed = capsys.readouterr().out
    assert "200 images under rot4" in printed and "as it came" in printed


@pytest.mark.slow
@pytest.mark.usefixtures("elsewhere")
def test_the_commands_on_a_model_from_code_in_the_guide_to_looking_run() -> None:
    pytest.importorskip("matplotlib", reason='the page needs pip install "ien[plots]"')
    image = pytest.importorskip("PIL.Image", reason="images are read by pillow: pip install 'ien[plots]'")
    from safetensors.torch import save_file

    from ien.cli.model_file import build_model
    from tests.helpers.shell import invoke

    Path("net.py").write_text(NET)
    save_file(build_model("net.py:build").state_dict(), "w.safetensors")
    Path("photos").mkdir()
    for i, pixels in enumerate(torch.randint(256, (3, 20, 30, 3), dtype=torch.uint8)):
        image.fromarray(pixels.numpy()).save(f"photos/{i}.png")
    text = (ROOT / "docs/looking.md").read_text()
    commands = re.findall(r"^ien ((?:measure|report) net\.py:build .+)$", text, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        words = command.partition("#")[0].split()
        code = 0
        if "--fail-above" in words:
            words += ["--size", "32"]
            code = 1  # random weights are far above it
        invoke(*words, code=code)
    assert Path("report.html").exists() and Path("page.html").exists()


@pytest.mark.usefixtures("elsewhere", "one_thread")
def test_the_guide_to_training_runs(capsys, monkeypatch) -> None:
    pytest.importorskip("PIL", reason="images are read with pillow: pip install 'ien[plots]'")
    from tests.helpers.shell import invoke
    from tests.helpers.tiny import make_class_folders, make_mask_folders

    make_class_folders(Path("photos"), shape=(9, 9, 3))
    make_mask_folders(Path("cells"))
    Path("net.py").write_text(
        "from torch import nn\n"
        "def build(num_classes):\n"
        "    return nn.Sequential(nn.Conv2d(3, 24, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), "
        "nn.Linear(24, num_classes))\n"
    )
    lines = re.findall(r"^ien (.*?) *(?:#.*)?$", (ROOT / "docs/train.md").read_text(), flags=re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        words = line.split()
        if words[0] == "train":
            words += ["--epochs", "1", "--device", "cpu"]
        if "--ignore" in words:
            words += ["--name", "ignored"]  # the run before has the name that it would have
        invoke(*words)
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "net", raising=False)  # of another page
    names = run_blocks("docs/train.md", {"ien": ien, "images": torch.rand(2, 3, 9, 9)}, 2)
    assert capsys.readouterr().out.count("class ") == 2
    assert isinstance(names["model"], nn.Sequential) and names["model"].taps == ("0", "1")


def test_the_page_on_how_the_doctor_works_runs(capsys, monkeypatch) -> None:
    from ien.geometry import interpreter

    monkeypatch.setattr(interpreter, "RULES", dict(interpreter.RULES))  # the page adds a rule
    run_blocks("docs/doctor.md", {}, 2)
    flat, constant, embedding, unknown, exact = capsys.readouterr().out.splitlines()
    assert flat == "((('H', 7), ('W', 7)),)"
    assert constant.endswith("'')") and embedding.endswith("'values')")
    assert (unknown, exact) == ("the doctor cannot follow it", "True")


@pytest.mark.usefixtures("elsewhere", "one_thread")
def test_the_guide_to_tracking_runs(capsys, monkeypatch) -> None:
    pytest.importorskip("av", reason="videos need av: pip install 'ien[track]'")
    pytest.importorskip("PIL", reason="frames need pillow: pip install 'ien[track]'")
    from ien.tracking.data.clips import otb
    from ien.tracking.data.rot_otb import write
    from ien.tracking.data.synthetic import synthetic
    from ien.tracking.video import footage, write_video
    from tests.helpers.tracker_run import untrained_tracker

    clip = synthetic(seed=4, frames=3, size=(120, 160))
    write(clip, "data/otb")
    write_video("clip.mp4", footage(clip))
    untrained_tracker(Path("runs/tracking/ien-siamfc/small-seed1"), "4")
    ran: list[tuple[str, object]] = []

    class Theirs:
        def __init__(self, name: str, is_deterministic: bool) -> None:
            self.name, self.is_deterministic = name, is_deterministic

    class Experiment:
        """In place of the toolkit's, which downloads OTB."""

        def __init__(self, folder: str, version: int) -> None:
            ran.append((folder, version))

        def run(self, tracker: Theirs) -> None:
            ran.append((tracker.name, tracker.is_deterministic))

        def report(self, names: list[str]) -> None:
            ran.append(("report", names))

    inside = {"": {}, ".trackers": {"Tracker": Theirs}, ".experiments": {"ExperimentOTB": Experiment}}
    for name, content in inside.items():
        module = types.ModuleType(f"got10k{name}")
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    run_blocks("docs/tracking.md", {"frames": list(footage(clip))}, 5)
    assert ran == [("data/otb", 2015), ("ien-siamfc", True), ("report", ["ien-siamfc"])]
    assert {path.name for path in Path("tracks").iterdir()} == {"clip.csv", "clip.mp4", "ien-siamfc"}
    printed = capsys.readouterr().out
    assert printed.count("success ") == 2 and printed.count("orientation error") == 1
    (turning,) = otb("data/rot-otb")
    assert turning.angles.tolist() == [0, 6 + clip.angles[1], 12 + clip.angles[2]]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(page) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        built = target == "live.html"  # by make docs
        assert built or target.startswith("https://") or (page.parent / target).exists(), target
    assert not re.findall(r"^[A-Z_]{4,}$|@[A-Z]", text, flags=re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Return the names under which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_into_a_page_lead_to_a_heading_of_it(page) -> None:
    for target, anchor in re.findall(r"\]\((?!https:)([^)#\s]*)#([^)]+)\)", page.read_text()):
        there = page.parent / target if target else page
        assert anchor in anchors_of(there), f"{target}#{anchor}"


def test_the_results_page_is_what_the_records_give(tmp_path) -> None:
    from ien.experiments.tables import write_page

    write_page(tmp_path / "results.md", "rot-mnist", ROOT / "results")
    written = (tmp_path / "results.md").read_text()
    assert written == (ROOT / "docs" / "results.md").read_text(), "run python docs/results.py"


def test_the_table_of_the_study_is_what_the_records_give() -> None:
    from ien.experiments.overview import study_table

    page = (ROOT / "docs" / "study.md").read_text()
    assert f"\n{study_table(ROOT / 'results')}\n<!-- end -->" in page, "run python docs/results.py"


@pytest.mark.parametrize("page", ["README.md", "docs/study.md"])
def test_what_is_said_of_several_seeds_is_in_the_results(page) -> None:
    spread = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")
    known = spread.findall((ROOT / "docs" / "results.md").read_text())
    said = spread.findall((ROOT / page).read_text())
    assert len(said) >= 5
    for mean, deviation in said:
        digits = len(mean.partition(".")[2])
        rounded = [tuple(f"{float(value):.{digits}f}" for value in pair) for pair in known]
        assert (mean, deviation) in rounded, f"{mean} ± {deviation}"


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example_runs_without_a_warning(script) -> None:
    command = [sys.executable, "-W", "error", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and len(script.read_text().splitlines()) <= 60
