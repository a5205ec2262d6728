"""Make an ordinary convolutional network equivariant by training it that way.

The package, in the order in which it imports and in which to read it:

    _text.py        near names, numbers, tables and progress bars: how things are written
    _files.py       files written whole or not at all, seeded generators

    groups/         what acts: groups of transformations
    loss/           the paper: feature groups, capture, error, objective
    measuring/      how equivariant is a model: measure()
    geometry/       why it is not more: doctor()
    tying/          weights that are equivariant by construction
    models/         the networks of the paper
    baselines/      built-in equivariance: steerable, SESN, DSS, SS-CNN
    data/           files on disk -> tensors
    training/       configuration, tasks, the loop, the run folder
    report/         records -> tables, plots and pages
    tracking/       all of tracking
    experiments/    every row of the paper's tables and of our studies, as values; the queue
    cli/            the command line, a file for each family of commands
"""

import importlib as _importlib
from typing import Any as _Any

from .geometry.doctor import Diagnosis as Diagnosis
from .geometry.doctor import Finding as Finding
from .geometry.doctor import doctor as doctor
from .groups.families import custom as custom
from .groups.families import group as group
from .groups.families import reflection as reflection
from .groups.families import rotation as rotation
from .groups.families import scale as scale
from .groups.group import Group as Group
from .loss.capture import Features as Features
from .loss.capture import capture as capture
from .loss.feature_groups import FeatureGroups as FeatureGroups
from .loss.feature_groups import GroupPool as GroupPool
from .loss.feature_groups import group_pool as group_pool
from .loss.objective import Equivariance as Equivariance
from .loss.objective import EquivarianceLoss as EquivarianceLoss
from .loss.objective import equivariance_loss as equivariance_loss
from .measuring.measure import measure as measure
from .measuring.report import ElementReport as ElementReport
from .measuring.report import LayerReport as LayerReport
from .measuring.report import OutputReport as OutputReport
from .measuring.report import Report as Report
from .tying.keep import keep_equivariant as keep_equivariant
from .tying.recommended import Recommended as Recommended
from .tying.recommended import recommended as recommended
from .tying.start import LayerStart as LayerStart
from .tying.start import Start as Start
from .tying.start import start_equivariant as start_equivariant

__version__ = "0.1.0"

# loaded when first used
_LAZY = {"baselines": "baselines", "load": "training", "models": "models", "tracking": "tracking"}


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ien' has no attribute {name!r}")
    module = _importlib.import_module(f".{_LAZY[name]}", __name__)
    return module if name == _LAZY[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
