"""What a shell offers when TAB is pressed: names of experiments, tables and presets.

Typer filters by what is typed so far if a function returns more; these return fitting ones only.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["complete_experiments", "complete_presets", "complete_tables"]


def complete_experiments(incomplete: str) -> list[str]:
    """Return the experiments whose names begin with what is typed."""
    from ..experiments import names

    return _beginning_with(incomplete, names())


def complete_tables(incomplete: str) -> list[str]:
    """Return the tables whose names begin with what is typed."""
    from ..experiments.printed import TABLES

    return _beginning_with(incomplete, TABLES)


def complete_presets(incomplete: str) -> list[str]:
    """Return the presets whose names begin with what is typed."""
    from ..experiments import PRESETS

    return _beginning_with(incomplete, PRESETS)


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
