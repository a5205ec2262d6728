"""Every row of the paper's tables, and of the study beyond it, as a value; and what runs them.

rows.py         a table as a value
rot_mnist.py    rotated digits
tim.py          Rot-TIM and R2-TIM: rotated natural images
scale.py        scaled digits, STL-10, digits that are rotated and scaled
tracking.py     trackers
study.py        what each change to the paper's recipe brings
symmetry.py     data from exact symmetry to none, and what to pick for them
size.py         wider networks and longer training
nuclei.py       cell nuclei to segment
catalogue.py    all experiments by name
queue.py        run experiments one after another, and record them
launch.py       hand experiments to a cluster, a job each
fitting.py      does a network fit the images: its size, and what it returns
own_images.py   ``ien train``: a folder of images and a model → a run
describe.py     what ``ien show`` prints
claims.py       what the paper claims, and whether our runs say so too
overview.py     the symmetry study at a glance
printed.py      which rows stand together in a printed table
tables.py       records beside the paper's numbers
demo.py         ``ien demo``
"""

from .catalogue import check_preset as check_preset
from .catalogue import config as config
from .catalogue import deviations as deviations
from .catalogue import find as find
from .catalogue import names as names
from .catalogue import paper as paper
from .rows import PRESETS as PRESETS
