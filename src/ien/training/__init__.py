"""The training engine: one loop, one configuration, one run folder."""

from .config import Config as Config
from .config import change as change
from .config import differences as differences
from .config import field_help as field_help
from .distributed import ALONE as ALONE
from .distributed import Processes as Processes
from .distributed import joined as joined
from .loop import Diverged as Diverged
from .loop import Stopped as Stopped
from .run import load as load
from .run import run as run
