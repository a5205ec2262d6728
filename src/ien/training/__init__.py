"""The training engine: one loop, one configuration, one run folder.

fields.py        how a field of the configuration is declared and checked
sections.py      the settings of data, network, objective, optimizer, schedule and machine
config.py        all sections together: everything that determines a run
own_model.py     a network of your own, whose code runs only if you give it
overrides.py     ``--set field=value`` applied to a configuration
distributed.py   several processes that share each batch
task.py          what the loop trains, and what a run asks of a kind of tasks
schedule.py      the length of an epoch, and the learning rate of every step
memory.py        out of memory, in one line
network.py       network, equivariance loss and optimizer of a configuration
run_folder.py    the files that a run leaves behind
checkpoint.py    what it takes to go on: written, read, and checked before anyone does
single_file.py   one .safetensors file in place of a run folder
evaluate.py      accuracy, equivariance errors and cost of a trained network
images.py        which images a run trains on and is tested on, and how they are shown
classify.py      images to classify, as a task
folder.py        a folder of your own pictures to classify, as a task
segment.py       images and masks to segment, as a task
loop.py          the training loop
progress.py      how a run is shown while it goes on
card.py          the model card of a run
run.py           one run: data, training, test, record
"""

from .config import MACHINE as MACHINE
from .config import Config as Config
from .config import changed as changed
from .config import differences as differences
from .config import entries as entries
from .config import flat as flat
from .distributed import ALONE as ALONE
from .distributed import Processes as Processes
from .distributed import joined as joined
from .loop import Diverged as Diverged
from .loop import Stopped as Stopped
from .memory import OutOfMemory as OutOfMemory
from .overrides import change as change
from .run import load as load
from .run import run as run
from .task import kind_of as kind_of
