"""Tracking: follow a target through frames from its first box, and score what was found.

In reading order:

    data/                   clips: frames with a box in each, from files or generated
    siamfc_network.py       SiamFC, and the cross-correlation of its features
    re_siamfc_network.py    RE-SiamFC, the same with steerable convolutions
    settings.py             how a tracker searches, as published for each backbone
    tracker.py              Tracker: a network, a frame and a box → the box in each next frame
    trajectory.py           track and follow: a box, a score, an angle and a time for each frame
    scoring.py              success, precision, orientation error and speed
    by_angle.py             the overlap at each angle of a target that rotates
    results.py              text files of boxes, as the GOT-10k toolkit has them
    got10k.py               our trackers inside the GOT-10k toolkit
    drawing.py              frames with the box drawn in
    video.py                frames of a video file, a folder or a clip; frames written as a video
    recording.py            a video and a table that show a track
    sources.py              what a path to track in means
    training/               pairs, the task of the training loop, and the test of a trained tracker
    report/                 tables and plots of trackers
    exported.py             a tracker whose network is an ONNX file
    demo.py                 what ``ien track --demo`` shows
"""

from .got10k import as_got10k as as_got10k
from .re_siamfc_network import ReSiamFC as ReSiamFC
from .re_siamfc_network import re_siamfc as re_siamfc
from .recording import record as record
from .scoring import Score as Score
from .scoring import centre_error as centre_error
from .scoring import overlap as overlap
from .scoring import score as score
from .scoring import summarise as summarise
from .settings import Settings as Settings
from .siamfc_network import SiamFC as SiamFC
from .siamfc_network import siamfc as siamfc
from .tracker import Tracker as Tracker
from .tracker import Update as Update
from .trajectory import Track as Track
from .trajectory import follow as follow
from .trajectory import track as track
from .trajectory import write_csv as write_csv
from .video import footage as footage
