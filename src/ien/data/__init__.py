"""Data sets: from files on disk to tensors."""

from .digits import embedded_digits as embedded_digits
