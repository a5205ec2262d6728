"""A suffix chooses the format, and a missing package is named with what installs it."""

import importlib.util
from pathlib import Path

import pytest

from ien.exporting.formats import ONNX, PROGRAM, WEIGHTS, check_packages, format_of


@pytest.mark.parametrize(
    ("name", "expected"), [("a.onnx", ONNX), ("a.b.PT2", PROGRAM), ("x/a.safetensors", WEIGHTS)]
)
def test_the_suffix_chooses_the_format(name, expected) -> None:
    assert format_of(Path(name)) is expected


@pytest.mark.parametrize("name", ["net.tflite", "net", ".onnx"])
def test_another_suffix_is_refused_with_those_that_work(name) -> None:
    with pytest.raises(ValueError, match=r"ends in \.onnx, \.pt2, \.safetensors; got"):
        format_of(Path(name))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxscript" else there(name)
    )
    with pytest.raises(ModuleNotFoundError, match=r"^ONNX needs onnxscript: pip install .*export|onnx"):
        check_packages(ONNX)
    check_packages(PROGRAM)
