"""Progress: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

__all__ = ["progress_bar"]


def progress_bar(column: ProgressColumn) -> Progress:
    """A bar with ``column``, such as how much is done, to enter and to add tasks to."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), column, TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)
