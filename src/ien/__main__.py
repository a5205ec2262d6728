"""``python -m ien`` is the same as the command ``ien``."""

from .cli import app

app()
