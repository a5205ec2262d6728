"""Tracking: follow a target through frames from its first box, and score the boxes against the truth."""

from .got10k import as_got10k as as_got10k
from .re_siamfc_network import re_siamfc as re_siamfc
from .scoring import Score as Score
from .scoring import centre_error as centre_error
from .scoring import overlap as overlap
from .scoring import score as score
from .scoring import summarise as summarise
from .settings import Settings as Settings
from .siamfc_network import siamfc as siamfc
from .tracker import Tracker as Tracker
from .tracker import Update as Update
from .trajectory import Track as Track
from .trajectory import follow as follow
from .trajectory import track as track
from .trajectory import write_csv as write_csv
from .video import footage as footage
from .video import record as record
