"""A model named as in ``code.py:build``, and weights for it: what is found, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ien.cli.model_file import build_model, build_with_weights

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
MORE = """
import torch

def trained():
    net = build()
    nn.init.ones_(net.weight)
    nn.init.ones_(net.bias)
    return net

def compiled():
    return torch.compile(nn.Sequential(build()), backend="eager")

def compiled_inside():
    return nn.Sequential(torch.compile(build(), backend="eager"))

def compiled_in_place():
    net = nn.Sequential(build())
    net[0].compile(backend="eager")
    return net

def parallel():
    return nn.DataParallel(nn.Sequential(build()))

def new_head():
    return nn.Sequential(trained(), build())
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
        ("net.py:number", "should return a torch.nn.Module; it returned an int"),
        ("net.py:failing", r"net.py:failing raised LookupError: no such stage \(line 12 of net.py\)"),
        ("net.py:needs", "net.py:needs cannot be called without width: name a function"),
        ("net.py:exits", "net.py:exits raised SystemExit: 3"),
        ("syntax.py:build", "syntax.py raised SyntaxError"),
        (
            "no.such.module:build",
            "no.such.module cannot be imported: ModuleNotFoundError: No module named 'no'$",
        ),
        ("net.py", "name the function of net.py that makes the model, such as net.py:build"),
        ("nothing", "there is no run folder nothing; a model is a run folder, or a function in a code file"),
        ("nonet.py:build", r"there is no code file nonet\.py"),
        (":build", "in a code file: code.py:build; got ':build'"),
        ("net.py:a b", "got 'net.py:a b'"),
    ],
)
def test_what_names_no_model_is_refused_with_the_reason(target, message) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build_model(target)


def test_weights_that_another_seed_would_change_are_random() -> None:
    Path("net.py").write_text(CODE + MORE)
    built = build_with_weights("net.py:build", None)
    assert built.random
    assert built.notes == ("no --weights: weights of net.py:build are random (seed 0), not trained",)
    assert torch.equal(built.model.weight, build_with_weights("net.py:build", None).model.weight)
    trained = build_with_weights("net.py:trained", None)
    assert not trained.random and not trained.notes
    head = build_with_weights("net.py:new_head", None)
    assert head.random and "2 of 4 weights of net.py:new_head are random" in head.notes[0]


def test_what_weights_were_unwrapped_from_is_said_in_one_line() -> None:
    source = build_model("net.py:build")
    wrapped = {f"module.{name}": tensor for name, tensor in source.state_dict().items()}
    torch.save({"state_dict": wrapped, "epoch": 3}, "checkpoint.pt")
    built = build_with_weights("net.py:build", Path("checkpoint.pt"))
    assert torch.equal(source.weight, built.model.weight) and not built.random
    assert built.notes == ("checkpoint.pt: weights from 'state_dict', without the prefix 'module.'",)


@pytest.mark.parametrize("name", ["compiled", "compiled_inside", "compiled_in_place", "parallel"])
def test_a_compiled_model_is_looked_at_as_it_was_before_and_named(name) -> None:
    Path("net.py").write_text(CODE + MORE)
    save = {f"0.{key}": tensor for key, tensor in build_model("net.py:build").state_dict().items()}
    torch.save(save, "w.pt")
    built = build_with_weights(f"net.py:{name}", Path("w.pt"))
    assert type(built.model) is nn.Sequential and type(built.model[0]) is nn.Linear
    assert all(module._compiled_call_impl is None for module in built.model.modules())
    if name == "parallel":
        assert not built.notes
    else:
        assert built.notes[0].startswith(f"net.py:{name} returns a compiled model: it is looked at as")
