"""The checkpoint of an adaptation: adapt goes on from where it was, with the same model and settings."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from ien.adapting.adapt import adapt
from tests.adapting.test_adapt import images, sided


def test_it_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    net = sided()
    adapt(net, images(), "rot4", minutes=0.005, share=1.0, folder=tmp_path, progress=False)
    first = torch.load(tmp_path / "adapting.pt", weights_only=True)
    adapted = adapt(net, images(), "rot4", minutes=0.01, share=1.0, folder=tmp_path, progress=False)
    second = torch.load(tmp_path / "adapting.pt", weights_only=True)
    assert 0 < first["step"] < second["step"]
    assert second["seconds"] == pytest.approx(0.6, abs=0.5)
    for name, value in adapted.state_dict().items():
        assert torch.equal(value, second["model"][name])
    # the time is used up: nothing changes any more
    again = adapt(net, images(), "rot4", minutes=0.01, share=1.0, folder=tmp_path, progress=False)
    for name, value in again.state_dict().items():
        assert torch.equal(value, second["model"][name])


def test_another_model_or_setting_does_not_go_on_from_it(tmp_path: Path) -> None:
    adapt(sided(), images(), "rot4", minutes=0.005, folder=tmp_path, progress=False)
    with pytest.raises(
        ValueError, match="was made with group=rot4, not flip: use the same, or another folder"
    ):
        adapt(sided(), images(), "flip", minutes=0.01, folder=tmp_path, progress=False)
    for change, message in (
        ({"layers": ["2"]}, r"was made with layers=\{\}, not \{'2': 1.0\}"),
        ({"outputs": "invariant"}, "was made with outputs=scores, not invariant"),
    ):
        with pytest.raises(ValueError, match=message):
            adapt(sided(), images(), "rot4", minutes=0.01, folder=tmp_path, progress=False, **change)
    of_other_shape = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
    of_other_weights = sided()
    with torch.no_grad():
        of_other_weights[0].weight[0, 0, 0, 0] += 1e-6
    for other in (of_other_shape, of_other_weights):
        with pytest.raises(ValueError, match="is of another model"):
            adapt(other, images(), "rot4", minutes=0.01, folder=tmp_path, progress=False)
    (tmp_path / "adapting.pt").write_bytes(b"half a file")
    with pytest.raises(ValueError, match="cannot be read"):
        adapt(sided(), images(), "rot4", minutes=0.01, folder=tmp_path, progress=False)


def test_a_checkpoint_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "adapting.pt")
    with pytest.raises(ValueError, match=r"adapting\.pt is not a regular file but a pipe"):
        adapt(sided(), images(), "rot4", minutes=0.01, folder=tmp_path, progress=False)


def test_a_checkpoint_that_may_not_be_read_is_never_to_be_removed(tmp_path, monkeypatch) -> None:
    (tmp_path / "adapting.pt").write_text("x")
    monkeypatch.setattr(torch, "load", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(PermissionError) as caught:
        adapt(sided(), images(), "rot4", minutes=0.01, folder=tmp_path, progress=False)
    assert "remove" not in str(caught.value)
