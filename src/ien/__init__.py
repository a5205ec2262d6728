"""Make an ordinary convolutional network equivariant by training it that way."""

import importlib as _importlib
from typing import Any as _Any

from ._capture import Features as Features
from ._capture import capture as capture
from ._doctor import Diagnosis as Diagnosis
from ._doctor import Finding as Finding
from ._doctor import doctor as doctor
from ._feature_groups import FeatureGroups as FeatureGroups
from ._feature_groups import GroupPool as GroupPool
from ._feature_groups import group_pool as group_pool
from ._groups import Group as Group
from ._groups import custom as custom
from ._groups import group as group
from ._groups import reflection as reflection
from ._groups import rotation as rotation
from ._groups import scale as scale
from ._keep import keep_equivariant as keep_equivariant
from ._loss import Equivariance as Equivariance
from ._loss import EquivarianceLoss as EquivarianceLoss
from ._loss import equivariance_loss as equivariance_loss
from ._measure import measure as measure
from ._measured import ElementReport as ElementReport
from ._measured import LayerReport as LayerReport
from ._measured import OutputReport as OutputReport
from ._measured import Report as Report
from ._recommended import Recommended as Recommended
from ._recommended import recommended as recommended
from ._start import LayerStart as LayerStart
from ._start import Start as Start
from ._start import start_equivariant as start_equivariant

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
