"""Tracking: how well predicted boxes follow the true ones."""

from .score import Score as Score
from .score import centre_error as centre_error
from .score import overlap as overlap
from .score import score as score
from .score import summarise as summarise
