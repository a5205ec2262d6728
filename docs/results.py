"""Write what the documents take from the records: results.md, and the table that study.md opens with.

``python docs/results.py`` does it after every new record; ``python docs/figures/symmetry.py`` draws
the same table.
"""

from __future__ import annotations

from pathlib import Path

from ien.experiments.overview import study_table
from ien.experiments.tables import write_page

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
STUDY = DOCS / "study.md"
START, END = "<!-- results.py -->", "<!-- end -->"


def with_table(text: str, table: str) -> str:
    """Return a page with another table between its two marks."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{table}\n{END}{after}"


if __name__ == "__main__":
    write_page(DOCS / "results.md", "rot-mnist", RESULTS)
    STUDY.write_text(with_table(STUDY.read_text(), study_table(RESULTS)))
    print("docs/results.md and the table of docs/study.md are written")
