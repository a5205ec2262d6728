"""The page of one report: its numbers, its curve, and names that do no harm."""

import re
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from ien.measuring.report import Report
from ien.report.page.measured import measured_page
from tests.helpers.reports import circle, layer, report, scaled

HOSTILE = """</script><img src=x onerror=alert(1)>"'&lt;${1}{{7*7}}"""


def tags(page: str) -> list[tuple[str, list[str]]]:
    """Every element with the names of its attributes, in order."""
    found: list[tuple[str, list[str]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, list(dict(attrs))))
    parser.feed(page)
    parser.close()
    return found


def test_cells_are_those_of_the_printed_table() -> None:
    given = report(conv1=layer(circle(), 0.01), conv2=layer(circle(0.1)))
    page = measured_page(given)
    header, rows = given.table()
    assert all(f">{cell}</th>" in page for cell in header)
    assert all(f">{cell}<" in page for row in rows for cell in row)
    assert all(f">{cell}<" in page for row in given.element_table() for cell in row)
    assert all(remark in page for remark in given.remarks())


@pytest.mark.parametrize(
    ("given", "axis", "marks"),
    [
        (report(c=layer(circle())), "angle", ["0°", "90°", "180°", "270°", "360°"]),
        (report(c=scaled({0.5: 0.1, 0.7: 0.2, 2.0: 0.3})), "factor", ["×0.5", "×0.7", "×1", "×2"]),
        (report(c=layer(circle() | {90.0: 0.0})), "angle", ["0°", "90°", "180°", "270°", "360°"]),
        (report(c=layer({90.0: 0.1})), None, []),
        (report(c=scaled({0.5: 0.1, 2.0: 0.3})), None, []),
    ],
    ids=["angles", "factors", "an error of zero", "one angle", "two factors"],
)
def test_there_is_a_curve_over_enough_angles_or_factors(given, axis, marks) -> None:
    page = measured_page(given)
    assert re.findall(r"<h2>Relative error against the (\w+)</h2>", page) == [axis] * (axis is not None)
    assert ("<polyline" in page) == (axis is not None)
    assert re.findall(r'text-anchor="middle">([^<]+)<', page) == marks


def test_the_curve_is_logarithmic_and_runs_from_left_to_right() -> None:
    errors = {45.0 * k: 10.0**-k for k in range(1, 8)}
    page = measured_page(report(c=layer(errors)))
    (points,) = re.findall(r'<polyline[^>]* points="([^"]+)"', page)
    x, y = zip(*(map(float, point.split(",")) for point in points.split()), strict=True)
    steps = [b - a for a, b in pairwise(y)]
    assert list(x) == sorted(x) and max(steps) - min(steps) < 0.21 and min(steps) > 0  # down is smaller
    assert len(re.findall("<polyline", measured_page(report(a=layer(errors), b=layer(errors))))) == 2


def test_hostile_names_stay_text() -> None:
    hostile, harmless = (
        measured_page(Report(name, 10, {name: layer(circle())})) for name in (HOSTILE, "harmless")
    )
    assert tags(hostile) == tags(harmless)
    assert "<img" not in hostile and "</script" not in hostile and "${1}49" not in hostile


def test_it_loads_nothing_and_runs_no_script() -> None:
    page = measured_page(report(c=layer(circle())))
    assert "<script" not in page and "://" not in page
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'") and "script-src" not in policy


def test_saving_a_report_needs_no_matplotlib(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report(c=layer(circle())).save(tmp_path)
    assert "<polyline" in (tmp_path / "report.html").read_text(encoding="utf-8")
