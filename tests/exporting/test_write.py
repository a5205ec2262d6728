"""Damaged headers are empty ones, and a full temporary folder is one line."""

import os
import re
import subprocess
import sys

import pytest

from ien.exporting.write import read_header


@pytest.mark.parametrize("metadata", [None, {}, {"ien": "{"}, {"ien": "[1]"}, {"other": "{}"}])
def test_what_is_not_our_header_is_an_empty_one(metadata) -> None:
    assert read_header(metadata) == {}


@pytest.mark.parametrize("suffix", ["safetensors", "pt2", "onnx"])
def test_a_full_temporary_folder_is_one_line_with_advice(suffix, tmp_path) -> None:
    """In a process of its own, whose files can have 100 bytes."""
    pytest.importorskip("resource", reason="needs the limits of POSIX")
    if suffix == "onnx":
        pytest.importorskip("onnxscript")
    code = f"""
import resource, signal, torch, ien
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    ien.export(net, "net.{suffix}", torch.rand(2, 3, 8, 8))
except OSError as error:
    print(error)
"""
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary")}
    (tmp_path / "temporary").mkdir()
    # -B: Python would keep compiled modules that end after 100 bytes
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    (told,) = done.stdout.splitlines()
    assert re.fullmatch(rf"{tmp_path}/temporary/\S+ could not be written \(.+ by the variable TMPDIR", told)
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]
    assert not list((tmp_path / "temporary").glob(".ien-*"))
