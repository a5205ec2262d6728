"""Tracking: a network and a first box in, a box for every frame out, and how well they follow the truth."""

from .got10k import as_got10k as as_got10k
from .score import Score as Score
from .score import centre_error as centre_error
from .score import overlap as overlap
from .score import score as score
from .score import summarise as summarise
from .settings import Settings as Settings
from .tracker import Tracker as Tracker
from .tracker import Update as Update
from .tracks import Track as Track
from .tracks import follow as follow
from .tracks import track as track
from .tracks import write_csv as write_csv
from .video import footage as footage
from .video import record as record
