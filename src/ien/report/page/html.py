"""Fill a template: every text is escaped, and nothing is loaded from elsewhere."""

from __future__ import annotations

import math
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from ..._text import MODEL_ITSELF, number, readable, short_count
from ..palette import COLOURS

__all__ = ["fill"]

TEMPLATES = Path(__file__).parent / "templates"
LOWEST_HEAT = -4
"""Relative errors of this power of ten are not shaded at all, those of 1 and above most."""


def fill(template: str, script: str | None = None, **values: object) -> str:
    """Return the page that a template makes of these values.

    Args:
        template: The name of a file in ``templates/``, such as ``runs.html``.
        script: The only script that the page may run, a file there too; None for no script.
        values: What the template shows. A name that it uses and that is missing is an error.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from ... import __version__

    # names come from files and code of users: all text is escaped, and a missing value is an error
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "readable": readable,
        "short_count": short_count,
        "percent": _percent,
        "score": _score,
        "all_digits": _all_digits,
        "heat": _heat,
    }
    code = ""
    if script is not None:
        code = _read(script)
    # the policy names the script by its hash, so that an injected one does not run
    digest = b64encode(sha256(code.encode()).digest()).decode()
    return environment.get_template(template).render(
        values,
        version=__version__,
        model_itself=MODEL_ITSELF,
        colours=COLOURS,
        style=_read("page.css"),
        script=code,
        script_hash=digest,
    )


def _read(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.2f} %"


def _score(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.3f}"


def _all_digits(value: float) -> str:
    """Write a number for machines; nothing for one that was not measured."""
    if not math.isfinite(value):
        return ""
    return repr(value)


def _heat(relative: float) -> str:
    """Say how strongly the cell of a relative error is shaded, from 0 to 1.

    >>> _heat(1e-4), _heat(0.01), _heat(3.0), _heat(float("nan"))
    ('0.00', '0.50', '1.00', '0.00')
    """
    if not relative > 0:  # NaN as well
        return "0.00"
    heat = 1 - math.log10(relative) / LOWEST_HEAT  # 0 at 1e-4, 1 at 1
    return f"{min(max(heat, 0), 1):.2f}"
