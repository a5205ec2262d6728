"""A model named as in ``code.py:build``, and weights for it: what is found, and what is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ien.cli.model_file import build_model, load_weights_into

CODE = """
from torch import nn
from beside import WIDTH

def build():
    return nn.Linear(3, WIDTH)

def number():
    return 3

def failing():
    raise LookupError("no such stage")

def exits():
    raise SystemExit(3)

def needs(width):
    return build()

READY = build()
"""


@pytest.fixture(autouse=True)
def code(elsewhere):
    Path("net.py").write_text(CODE)
    Path("beside.py").write_text("WIDTH = 4")
    Path("syntax.py").write_text("def build(:\n")


@pytest.mark.parametrize(
    ("target", "kind"),
    [("net.py:build", nn.Linear), ("net.py:READY", nn.Linear), ("torch.nn:Identity", nn.Identity)],
)
def test_a_function_a_ready_model_and_a_class_in_a_module_can_be_named(target, kind) -> None:
    assert isinstance(build_model(target), kind)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("net.py:bild", "net.py has no 'bild'; it has build, number"),
        ("net.py:number", "should return a torch.nn.Module; it returned a int"),
        ("net.py:failing", r"net.py:failing raised LookupError: no such stage \(line 12 of net.py\)"),
        ("net.py:needs", r"net.py:needs raised TypeError: needs\(\) missing 1 required"),
        ("net.py:exits", "net.py:exits raised SystemExit: 3"),
        ("syntax.py:build", "syntax.py raised SyntaxError"),
        ("no.such.module:build", "no.such.module cannot be imported: ModuleNotFoundError"),
        ("nonet.py:build", r"there is no code file nonet\.py"),
        (":build", "in a code file: code.py:build; got ':build'"),
        ("net.py:a b", "got 'net.py:a b'"),
    ],
)
def test_what_names_no_model_is_refused_with_the_reason(target, message) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build_model(target)


@pytest.mark.parametrize("key", ["", "state_dict", "model"])
def test_weights_of_a_checkpoint_are_found(key) -> None:
    source, target = build_model("net.py:build"), build_model("net.py:build")
    state = source.state_dict()
    torch.save({key: state, "epoch": 3} if key else state, "checkpoint.pt")
    load_weights_into(target, Path("checkpoint.pt"))
    assert torch.equal(source.weight, target.weight)


class Evil:
    def __reduce__(self):
        return open, ("executed", "w")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.pt", "there is no file none.pt"),
        ("other.safetensors", "other.safetensors does not fit the model"),
        ("damaged.safetensors", "cannot be read as weights"),
        ("evil.pt", "evil.pt cannot be read as weights"),
        ("list.pt", "should hold a state_dict; it holds a list"),
    ],
)
def test_other_weights_are_refused_and_never_executed(name, message) -> None:
    save_file({"other": torch.zeros(1)}, "other.safetensors")
    Path("damaged.safetensors").write_bytes(b"not weights")
    torch.save({"x": Evil()}, "evil.pt")
    torch.save([1], "list.pt")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_weights_into(nn.Linear(3, 4), Path(name))
    assert not Path("executed").exists()
