"""The command line: ``ien``, one file for each family of commands."""

from .app import app as app
