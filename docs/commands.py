"""Every command, its arguments and options, from the command line itself: commands.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from ien.cli import app

HEAD = """# The commands

Every command with its arguments and options, as `ien COMMAND --help` shows them. This page is
written by `python docs/commands.py`.

An error that you can mend is one line, and the exit code is 2; `IEN_TRACEBACK=1` shows the traceback
instead. Exit code 1 means that a gate such as `--fail-above` was not passed.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    parts = [HEAD]
    panel = ""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"## {panel}\n")
        parts += section(f"ien {name}", command)
    return "\n".join(parts)


def section(name: str, command: Any, level: int = 3) -> list[str]:
    """Return the text of a command, and of the commands inside it."""
    parts = [f"{'#' * level} {name}\n", description(command.help)]
    inside = getattr(command, "commands", {})
    if not inside:
        parts.append(parameters(name, command.params))
    for inner, inner_command in inside.items():
        parts += section(f"{name} {inner}", inner_command, level + 1)
    return parts


def description(text: str) -> str:
    """Return the help text; its examples become one block of code."""
    paragraphs = []
    examples = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("Example: "):
            examples.append(" ".join(paragraph.removeprefix("Example: ").split()))
        else:
            # <name> would be read as HTML
            paragraphs.append(re.sub(r"<(\w+)>", r"\\<\1>", paragraph) + "\n")
    if examples:
        paragraphs.append("```bash\n" + "\n".join(examples) + "\n```\n")
    return "\n".join(paragraphs)


def parameters(name: str, params: list[Any]) -> str:
    """Return a usage line, and a table of arguments and options."""
    arguments = [param for param in params if param.param_type_name == "argument"]
    words = [name]
    rows = []
    for argument in arguments:
        written = argument.metavar or argument.name.upper()
        if argument.nargs == -1 and "…" not in written:
            written += "…"
        words.append(written if argument.required else f"[{written}]")
        rows.append((f"`{written}`", argument))
    for option in params:
        if option.param_type_name == "option" and not option.hidden and option.name != "help":
            flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
            if option.metavar:
                flags += f" `{option.metavar}`"
            rows.append((flags, option))
    if len(rows) > len(arguments):
        words.append("[OPTIONS]")
    lines = ["```text", " ".join(words), "```", ""]
    if rows:
        lines += ["| | what it is | default |", "|---|---|---|"]
    for written, param in rows:
        cells = (written, (param.help or "").strip(), default_of(param))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def default_of(param: Any) -> str:
    """Return what is taken if nothing is given, as a cell of a table."""
    if isinstance(param.show_default, str):
        return param.show_default
    if param.required:
        return "required"
    if param.default in (None, False, (), []):
        return ""
    if param.default is True:
        return "on"
    return f"`{param.default}`"


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page())
