"""Files and options that somebody made on purpose: exit code 2, one line, and everything stays as it was."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from ien.data import tiny_imagenet
from tests.torture.child import call, fresh_copy, ien_command, tree
from tests.torture.commands import make_photos
from tests.torture.readers import make_experiment
from tests.torture.tally import Tally

SHORT = 12
"""Cases in ``make test``: every so many-th, so that these are tried."""
FULL = 10**6

Change = Callable[[Path], object]
DIGITS = "9" * 400
RESUME = ("resume", "run")
MEASURE = ("measure", "net.py:build", "--images", "photos", "--size", "3x12x12")
RUN = ("run", "rot-mnist/ien-r4", "--preset", "smoke", "--data", "embedded")


class Case(NamedTuple):
    """What is changed in a folder with a run, a model and photos, and the command that meets it."""

    change: Change
    words: tuple[str, ...]


# --- changes to the folder


def nothing(folder: Path) -> None:
    pass


def in_json(name: str, *keys: str, value: Any) -> Change:
    """Set a field of a JSON file of the run."""

    def change(folder: Path) -> None:
        path = folder / "run" / name
        content = json.loads(path.read_text())
        holder = content
        for key in keys[:-1]:
            holder = holder[key]
        holder[keys[-1]] = value
        path.write_text(json.dumps(content))

    return change


def in_config(*keys: str, value: Any) -> Change:
    return in_json("config.json", "config", *keys, value=value)


def not_begun(change: Change) -> Change:
    """Make a change in the folder of a run that has not saved a checkpoint yet."""

    def both(folder: Path) -> None:
        unfinished(folder).unlink()
        change(folder)

    return both


def text_in(name: str, text: str) -> Change:
    return lambda folder: (folder / "run" / name).write_text(text)


def unfinished(folder: Path) -> Path:
    """Let the run go on from its checkpoint; returns the path of that."""
    (folder / "run" / "result.json").unlink()
    (folder / "run" / "model.safetensors").unlink()
    return folder / "run" / "last.pt"


def in_checkpoint(spoil: Callable[[dict[str, Any]], object]) -> Change:
    """Change the checkpoint of a run that is not finished."""

    def change(folder: Path) -> None:
        path = unfinished(folder)
        state = torch.load(path, weights_only=True)
        spoil(state)
        torch.save(state, path)

    return change


def short_moments(state: dict[str, Any]) -> None:
    for kept in state["optimizer"]["state"].values():
        kept["exp_avg"] = kept["exp_avg"].flatten()[:1]


def in_place_of(name: str, kind: str) -> Change:
    """A pipe, a device or a folder in place of a file of the run."""

    def change(folder: Path) -> None:
        path = folder / "run" / name
        if name in ("last.pt", ".lock"):
            unfinished(folder)
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()

    return change


def bomb(folder: Path) -> None:
    """A checkpoint of a few MB that unpacks to two GB."""
    with zipfile.ZipFile(unfinished(folder), "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("last/data.pkl", "w", force_zip64=True) as member:
            for _ in range(2048):
                member.write(bytes(1 << 20))


class Payload:
    """Unpickling it makes a file."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def payload_in_checkpoint(folder: Path) -> None:
    torch.save({"model": Payload()}, unfinished(folder))


def payload_in_weights(folder: Path) -> None:
    torch.save({"state_dict": Payload()}, folder / "weights.pth")


def huge_picture(folder: Path) -> None:
    """A PNG whose header says 100,000 × 100,000."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    (folder / "photos" / "00.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def exiting_model(folder: Path) -> None:
    text = "import sys\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
    (folder / "net.py").write_text(f"{text}        sys.exit(0)\n\ndef build():\n    return Net()\n")


def pipe_for_adapting(folder: Path) -> None:
    (folder / "state").mkdir()
    os.mkfifo(folder / "state" / "adapting.pt")


ADAPT = ("adapt", "net.py:build", "--images", "photos", "--how", "adapt", "-o", "a.safetensors")
ADAPT += ("--resume", "state", "--minutes", "0.001", "--size", "3x12x12")

HUGE_GROUP_MEASURED = in_json("result.json", "config", "objective", "measured", value="rot99999999")
FIVE_PER_ELEMENT = in_json("result.json", "layers", "conv1", "per_element", value=5)
PLOT = ("plot", "training", "run", "--out", "t.png")

CASES: dict[str, Case] = {
    # the checkpoint
    "moments too short": Case(in_checkpoint(short_moments), RESUME),
    "epoch -1": Case(in_checkpoint(lambda s: s.update(epoch=-1)), RESUME),
    "epoch NaN": Case(in_checkpoint(lambda s: s.update(epoch=math.nan)), RESUME),
    "no moments": Case(in_checkpoint(lambda s: s["optimizer"].update(state={})), RESUME),
    "code in a checkpoint": Case(payload_in_checkpoint, RESUME),
    "a checkpoint that is a bomb": Case(bomb, RESUME),
    # configuration
    "a GPU that is not there": Case(not_begun(in_config("machine", "device", value="cuda")), RESUME),
    "config a list": Case(in_json("config.json", "config", value=[]), RESUME),
    "config a text": Case(in_json("config.json", "config", value="x"), ("show", "run")),
    "data a list": Case(in_json("config.json", "data", value=[]), ("show", "run")),
    "data folder 5": Case(in_json("config.json", "data", "folder", value=5), RESUME),
    "data counts text": Case(in_json("config.json", "data", "train", value="many"), ("show", "run")),
    "versions missing": Case(not_begun(in_json("config.json", "versions", value=None)), RESUME),
    "a huge number": Case(in_config("objective", "beta", value=10**400), RESUME),
    "a huge group": Case(in_config("objective", "group", value="rot99999999"), RESUME),
    "brackets": Case(text_in("config.json", "[" * 100_000), ("show", "run")),
    "brackets, resumed": Case(text_in("config.json", "[" * 100_000), RESUME),
    # records
    "record: a huge group": Case(HUGE_GROUP_MEASURED, ("table", "run")),
    "record: brackets": Case(text_in("result.json", "[" * 100_000), ("table", "run")),
    "record: brackets, shown": Case(text_in("result.json", "[" * 100_000), ("show", "run")),
    "record: per_element 5": Case(FIVE_PER_ELEMENT, ("table", "run")),
    "record: layers a list": Case(in_json("result.json", "layers", value=[1]), ("table", "run")),
    "record: accuracy text": Case(in_json("result.json", "accuracy", value="x"), ("table", "run")),
    "metrics: brackets": Case(text_in("metrics.jsonl", "[" * 100_000), PLOT),
    "metrics: a list": Case(text_in("metrics.jsonl", "[]\n[]\n"), PLOT),
    # things that are no files
    "checkpoint a pipe": Case(in_place_of("last.pt", "pipe"), RESUME),
    "checkpoint a device": Case(in_place_of("last.pt", "device"), RESUME),
    "checkpoint a folder": Case(in_place_of("last.pt", "folder"), RESUME),
    "lock a pipe": Case(in_place_of(".lock", "pipe"), RESUME),
    "config a pipe": Case(in_place_of("config.json", "pipe"), ("show", "run")),
    "config a device": Case(in_place_of("config.json", "device"), ("show", "run")),
    "record a pipe": Case(in_place_of("result.json", "pipe"), ("table", "run")),
    "weights a pipe": Case(in_place_of("model.safetensors", "pipe"), ("measure", "run")),
    "weights a device": Case(in_place_of("model.safetensors", "device"), ("measure", "run")),
    "adapting.pt a pipe": Case(pipe_for_adapting, ADAPT),
    # options
    "group rot4444444": Case(nothing, (*RUN, "--set", "group=rot4444444")),
    "too many seeds": Case(nothing, (*RUN, "--seed", "1-99999999999")),
    "far too many seeds": Case(nothing, (*RUN, "--seed", f"1-{DIGITS}")),
    "a huge fraction": Case(nothing, (*RUN, "--set", f"beta={DIGITS}/1")),
    "huge feature groups": Case(nothing, (*RUN, "--set", "feature_groups=99999999")),
    "a huge width": Case(nothing, (*RUN, "--set", "width=1e9")),
    "device meta": Case(nothing, (*RUN, "--device", "meta")),
    "device text": Case(nothing, (*RUN, "--device", "x:y")),
    "a huge size": Case(nothing, (*MEASURE[:-1], "3x999999x999999")),
    "measure rot4444444": Case(nothing, (*MEASURE, "--group", "rot4444444")),
    # pictures, weights and code
    "a huge picture": Case(huge_picture, MEASURE),
    "code in weights": Case(payload_in_weights, (*MEASURE, "--weights", "weights.pth")),
    "a model that exits": Case(exiting_model, ("doctor", "net.py:build", "--size", "3x12x12", "--strict")),
}


def base(folder: Path) -> None:
    """A finished run, a model, and photos."""
    make_experiment(folder)
    make_photos(folder)
    shutil.rmtree(folder / "runs")
    shutil.rmtree(folder / "results")


def make_base() -> None:
    base(Path.cwd())


def refused(place: Path, most: int) -> Tally:
    """Meet about ``most`` of the hostile cases, each in a copy of the folder."""
    tally = Tally("hostile files and options")
    start = place / "start"
    start.mkdir()
    made = call(make_base, folder=start)
    assert made.code == 0, made
    step = max(1, len(CASES) // most)
    for name in list(CASES)[::step]:
        work = fresh_copy(start, place / "work")
        tally.add(name, problem_with(CASES[name], work))
    return tally


def problem_with(case: Case, work: Path) -> str | None:
    case.change(work)
    before = tree(work)
    ended = call(ien_command, *case.words, folder=work, limited=True)
    if not ended.refused:
        return str(ended)
    after = tree(work)
    # a lock stays, a cache may be made before anything is refused, and Python compiles the model's code
    changed = [path for path in before | after if before.get(path, b"-") != after.get(path, b"-")]
    changed = [path for path in changed if not path.endswith(".lock")]
    changed = [path for path in changed if not path.startswith(("cache", "__pycache__"))]
    if changed:
        return f"changed {changed}"
    return None


# --- archives


def zip_with(name: str, content: bytes = b"x", mode: int = 0o100644) -> Callable[[Path], None]:
    """An archive with one member besides the folder that it should have."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tiny-imagenet-200/wnids.txt", "n1\n")
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, content)

    return write


ARCHIVES: dict[str, Callable[[Path], None]] = {
    "up": zip_with("../up.txt"),
    "up inside": zip_with("tiny-imagenet-200/../../up.txt"),
    "root": zip_with("/tmp/ien-torture-root.txt"),
    "drive": zip_with("C:\\up.txt"),
    "backslashes": zip_with("tiny-imagenet-200\\..\\..\\up.txt"),
    "elsewhere": zip_with("other/file.txt"),
    "a link": zip_with("tiny-imagenet-200/link", b"/etc/passwd", 0o120777),
    "a device": zip_with("tiny-imagenet-200/device", b"", 0o020666),
    "no archive": lambda path: path.write_bytes(b"PK\3\4" + bytes(100)),  # type: ignore[misc, return-value]
}


def unpack(name: str) -> None:
    from ien.cli.errors import Failed, one_line_errors

    try:
        with one_line_errors():
            tiny_imagenet.unpack(Path("tiny.zip"), Path.cwd())
    except Failed as error:
        print(error.message)
        raise SystemExit(error.exit_code) from None


def archives_refused(place: Path) -> Tally:
    """Unpack archives that lead elsewhere."""
    tally = Tally("hostile archives")
    for number, (name, write) in enumerate(ARCHIVES.items()):
        work = place / f"outer{number}" / "work"
        work.mkdir(parents=True)
        write(work / "tiny.zip")
        ended = call(unpack, name, folder=work, limited=True)
        found = sorted(path.name for path in work.iterdir())
        beside = {path.name for path in work.parent.iterdir()} - {"work", "work.output", "matplotlib"}
        problem = None
        if not ended.refused:
            problem = str(ended)
        elif found != ["tiny.zip"] or beside or Path("/tmp/ien-torture-root.txt").exists():
            problem = f"leaves {found}, and beside it {beside}"
        tally.add(name, problem)
    return tally


@pytest.mark.slow
def test_hostile_files_and_options_end_in_one_line_and_change_nothing(tmp_path: Path) -> None:
    refused(tmp_path, SHORT).check(at_least=SHORT)


@pytest.mark.slow
def test_archives_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    archives_refused(tmp_path).check(at_least=len(ARCHIVES))
