"""``python -m ien`` is the command ``ien``."""

from .cli.app import app

app()
