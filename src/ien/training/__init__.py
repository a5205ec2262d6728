"""The training engine: one loop, one configuration, one run folder."""

from .config import MACHINE as MACHINE
from .config import Config as Config
from .distributed import ALONE as ALONE
from .distributed import Processes as Processes
from .distributed import joined as joined
from .loop import Diverged as Diverged
from .loop import Stopped as Stopped
from .overrides import change as change
from .overrides import differences as differences
from .overrides import field_help as field_help
from .run import load as load
from .run import run as run
