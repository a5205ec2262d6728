"""Weights from files: what they come wrapped in is taken off, what does not fit is refused."""

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ien.measuring.weights import load_into, read_weights


class Net(nn.Module):
    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, classes)


def filled(value: float, net: nn.Module | None = None) -> nn.Module:
    """A net whose parameters all have this value."""
    net = net or Net()
    for parameter in net.parameters():
        nn.init.constant_(parameter, value)
    return net


def under(prefix: str, state: dict) -> dict:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def is_filled(net: nn.Module, value: float) -> bool:
    return all(bool((parameter == value).all()) for parameter in net.parameters())


PLAIN = filled(7).state_dict()
EMA = filled(3).state_dict()
LIGHTNING = {**under("model.", PLAIN), "loss.weight": torch.ones(2)}
CHECKPOINTS = {
    "plain": (PLAIN, ""),
    "state_dict": ({"state_dict": PLAIN, "epoch": 1}, "from 'state_dict'"),
    "model": ({"model": PLAIN, "optimizer": {"state": {}}}, "from 'model'"),
    "model_state_dict": ({"model_state_dict": PLAIN, "loss": 0.5}, "from 'model_state_dict'"),
    "a tensor beside": ({"state_dict": PLAIN, "best": torch.ones(1)}, "from 'state_dict'"),
    "twice": ({"model": {"state_dict": PLAIN}}, "from 'model' / 'state_dict'"),
    "the only one": ({"teacher": PLAIN, "epoch": 1}, "from 'teacher'"),
    "ema beside": ({"state_dict_ema": EMA, "state_dict": PLAIN}, "from 'state_dict'"),
    "ema alone": ({"epoch": 1, "state_dict_ema": PLAIN}, "from 'state_dict_ema'"),
    "parallel": (under("module.", PLAIN), "without the prefix 'module.'"),
    "compiled": (torch.compile(filled(7), backend="eager").state_dict(), "of a compiled model"),
    "both": (
        under("module.", torch.compile(filled(7), backend="eager").state_dict()),
        "of a compiled model, without the prefix 'module.'",
    ),
    "averaged": (
        AveragedModel(filled(7)).state_dict(),
        "without the prefix 'module.' (1 without it left out)",
    ),
    "lightning": (
        {"state_dict": LIGHTNING, "hyper_parameters": {"lr": 0.1}},
        "from 'state_dict', without the prefix 'model.' (1 without it left out)",
    ),
    "lightning with ema": (
        {"state_dict": {**under("ema.", EMA), **under("model.", PLAIN)}},
        f"from 'state_dict', without the prefix 'model.' ({len(EMA)} without it left out)",
    ),
    "another prefix": (under("learner.net.", PLAIN), "without the prefix 'learner.net.'"),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_what_checkpoints_come_in_is_taken_off_and_said(case, tmp_path) -> None:
    content, said = CHECKPOINTS[case]
    torch.save(content, tmp_path / "w.pt")
    net = Net()
    assert load_into(net, read_weights(tmp_path / "w.pt")) == said
    assert is_filled(net, 7)


def test_every_format_that_torch_and_safetensors_write_is_read_whatever_its_name(tmp_path) -> None:
    save_file(PLAIN, tmp_path / "a.safetensors")
    save_file(PLAIN, tmp_path / "b.bin")
    torch.save(PLAIN, tmp_path / "c.ckpt", _use_new_zipfile_serialization=False)
    for path in tmp_path.iterdir():
        net = Net()
        load_into(net, read_weights(path))
        assert is_filled(net, 7)


def test_a_model_that_is_wrapped_or_compiled_itself_takes_plain_weights() -> None:
    compiled = torch.compile(Net(), backend="eager")
    load_into(compiled, PLAIN)
    assert is_filled(compiled, 7)
    parallel = nn.DataParallel(Net())
    load_into(parallel, PLAIN)
    assert is_filled(parallel, 7)
    # compiled inside
    outer = nn.ModuleDict({"a": torch.compile(Net(), backend="eager"), "b": Net()})
    load_into(outer, under("a.", PLAIN) | under("b.", PLAIN))
    assert is_filled(outer, 7)


def test_weights_of_the_only_part_with_parameters_are_enough() -> None:
    normalised = nn.Sequential(nn.BatchNorm2d(3, affine=False), Net())
    assert load_into(normalised, PLAIN) == "into its part '1', which has all parameters"
    assert is_filled(normalised, 7)
    # with a head that the file lacks it would be half trained
    with pytest.raises(ValueError, match=r"missing 1.weight, 1.bias"):
        load_into(nn.Sequential(Net(), nn.Linear(2, 2)), under("0.", PLAIN))


def test_counters_of_training_may_be_missing() -> None:
    net = Net()
    load_into(net, {name: tensor for name, tensor in PLAIN.items() if "tracked" not in name})
    assert is_filled(net, 7)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (filled(1, Net(5)).state_dict(), r"fc.weight \(5, 4\) for the model's \(2, 4\), fc.bias"),
        ({"other": torch.ones(1)}, r"missing conv.weight, conv.bias, norm.weight, norm.bias and 4 more; "),
        (
            {name.replace("conv.", "conv1."): tensor for name, tensor in PLAIN.items()},
            "unexpected conv1.weight, conv1.bias; if conv.weight is conv1.weight",
        ),
        (
            {name: PLAIN[name] for name in list(PLAIN)[:-1]},
            "they have 8 of its 9 tensors; missing fc.bias; build",
        ),
        (under("a.", PLAIN) | under("b.", PLAIN), "fit under 2 prefixes, a., b.: write those of one"),
    ],
)
def test_weights_that_do_not_fit_are_named_and_the_model_is_as_before(weights, message) -> None:
    net = filled(5)
    with pytest.raises(ValueError, match=message) as caught:
        load_into(net, weights)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert is_filled(net, 5)


class Evil:
    def __reduce__(self):
        return open, ("executed", "w")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.pt", "there is no file none.pt with weights"),
        (".", "is a folder, not a file with weights: name one in it, such as cut.pt, damaged.safetensors"),
        ("empty.pt", "empty.pt is empty"),
        ("cut.pt", "cut.pt cannot be read as weights: it is cut short, damaged or in another format"),
        ("text.pt", "text.pt cannot be read as weights"),
        ("damaged.safetensors", "damaged.safetensors cannot be read as safetensors"),
        ("pointer.safetensors", "is a Git LFS pointer"),
        ("evil.pt", "evil.pt holds Python objects besides tensors, such as a whole model"),
        ("whole.pt", "save model.state_dict\\(\\) alone"),
        ("old.pt", "old.pt holds Python objects besides tensors"),
        ("script.pt", "script.pt is a whole program"),
        ("exported.pt2", "exported.pt2 is a whole program"),
        ("list.pt", "should hold a state_dict; it holds a list"),
        ("numbers.pt", "holds no weights where they are looked for; it has epoch, lr"),
        ("several.pt", "it has student, teacher"),
    ],
)
def test_other_files_are_refused_in_one_line_and_never_executed(name, message, elsewhere) -> None:
    torch.save(PLAIN, "whole_state.tmp")
    content = Path("whole_state.tmp").read_bytes()
    Path("cut.pt").write_bytes(content[: len(content) // 2])
    Path("empty.pt").touch()
    Path("text.pt").write_text("hello, this is not weights")
    Path("damaged.safetensors").write_bytes(b"not weights")
    Path("pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    torch.save({"x": Evil()}, "evil.pt")
    torch.save(nn.Linear(2, 2), "whole.pt")
    torch.save(nn.Linear(2, 2), "old.pt", _use_new_zipfile_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, its files are not gone
        torch.jit.trace(nn.Linear(2, 2), torch.rand(1, 2)).save("script.pt")
    torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.rand(1, 2),)), "exported.pt2")
    torch.save([1], "list.pt")
    torch.save({"epoch": 3, "lr": 0.1}, "numbers.pt")
    torch.save({"student": PLAIN, "teacher": PLAIN}, "several.pt")
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        read_weights(name)
    assert "weights_only" not in str(caught.value) and "\n" not in str(caught.value)
    assert not Path("executed").exists()


def test_an_archive_with_a_damaged_list_of_contents_is_refused_in_one_line(tmp_path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(PLAIN, path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2")] = 0
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cut short, damaged or in another format") as caught:
        read_weights(path)
    assert "\n" not in str(caught.value)


def test_a_tensor_of_another_name_is_told_with_the_nearest_of_the_file() -> None:
    with pytest.raises(ValueError, match=r"; if 0\.weight is weight in the file, rename it there or in"):
        load_into(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 5)), {"weight": torch.rand(1, 1, 3, 3)})
