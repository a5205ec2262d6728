"""``python -m ien`` is the command ``ien``."""

from .cli import app

app()
