"""A network of your own: named, digested, never executed unless it is given."""

from pathlib import Path

import pytest
import torch
from torch import nn

import ien
from ien.training.folder import FolderConfig, check_scores
from ien.training.own_model import NotGiven, OwnNetwork, build_own, check_code, code_of, given, name_layers

CODE = "from torch import nn\ndef build():\n    return nn.Conv2d(1, 2, 3)\n"


def network(code: str, sha256: str) -> OwnNetwork:
    return OwnNetwork(model="own", code=code, code_sha256=sha256)


def test_code_is_named_by_its_whole_path_and_digest(tmp_path, monkeypatch) -> None:
    import hashlib

    path = tmp_path / "net.py"
    path.write_text(CODE)
    monkeypatch.chdir(tmp_path)
    expected = f"{path}:build", hashlib.sha256(CODE.encode()).hexdigest()
    assert code_of("net.py:build") == code_of(f"{path}:build") == expected
    module, sha256 = code_of("torch.nn.modules.conv:Conv2d")
    source = Path(nn.modules.conv.__file__).read_bytes()
    assert (module, sha256) == ("torch.nn.modules.conv:Conv2d", hashlib.sha256(source).hexdigest())


@pytest.mark.parametrize(
    ("after", "told"), [(CODE, ""), ("raise SystemExit", "has changed since"), (None, "is missing now")]
)
def test_code_that_is_not_given_is_not_executed(after, told, tmp_path) -> None:
    path = tmp_path / "net.py"
    path.write_text(CODE)
    code, sha256 = code_of(f"{path}:build")
    if after is None:
        path.unlink()
    else:
        path.write_text(after)
    with pytest.raises(NotGiven, match="never executed by itself") as caught:
        build_own(network(code, sha256))
    assert told in str(caught.value) and "\n" not in str(caught.value)
    with given(code, lambda **options: nn.Identity()):
        assert isinstance(build_own(network(code, sha256), num_classes=2), nn.Identity)
    with pytest.raises(NotGiven):
        build_own(network(code, sha256))


def test_a_changed_file_is_told_in_one_line() -> None:
    own = network("/code/net.py:build", "a" * 64)
    check_code(own, "a" * 64, Path("runs/x"))
    with pytest.raises(ValueError, match=r"/code/net\.py has changed since runs/x began .*: restore it, or"):
        check_code(own, "b" * 64, Path("runs/x"))


@pytest.mark.parametrize("values", [{"model": "own"}, {"model": "resnet18", "code": "net.py:build"}])
def test_own_networks_and_code_go_together(values) -> None:
    with pytest.raises(ValueError, match="model=own goes with the code"):
        FolderConfig.of("mine/net", "folder", **values)


def test_layers_of_a_tied_network_get_the_feature_groups_that_they_rotate_in() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 24, 3), nn.ReLU(inplace=True), nn.Conv2d(24, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    x, group = torch.rand(4, 1, 9, 9), ien.rotation(4)
    ien.make_equivariant(net, group, x)
    name_layers(net, group, x, tied=True)
    assert net.taps == ("1", "2", "3")  # the first is overwritten in place
    assert net.feature_groups == {"1": 4, "2": 1, "3": 1}  # what leaves the model is never permuted
    plain = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())
    name_layers(plain, group, x, tied=False)
    assert plain.feature_groups == {"0": 1, "1": 1}


@pytest.mark.parametrize(
    ("output", "match"),
    [
        ({"logits": 0, "aux": 0}, r"net returns a dict with logits, aux: scores \(2, 3\) for 2 images"),
        ((torch.rand(2, 3),), "net returns a tuple: scores"),
        (torch.rand(2, 10), r"net returns float32 \(2, 10\): .* give its last layer 3 outputs"),
        (torch.rand(2, 3, 4, 4), r"net returns float32 \(2, 3, 4, 4\)"),
        (torch.ones(2, 3).long(), r"net returns int64 \(2, 3\)"),
    ],
)
def test_an_output_that_is_no_score_for_each_class_is_told(output, match) -> None:
    with pytest.raises(ValueError, match=match):
        check_scores(output, 2, 3, "net")
    check_scores(torch.rand(2, 3), 2, 3, "net")
