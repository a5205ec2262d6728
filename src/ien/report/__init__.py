"""Reports: from the records of runs to tables beside the paper's figures. Nothing here trains."""

from .records import Record as Record
from .records import Row as Row
from .records import collect as collect
from .records import read as read
from .records import summarise as summarise
from .tables.cells import PaperRow as PaperRow
from .tables.table import Part as Part
from .tables.table import Section as Section
from .tables.table import as_markdown as as_markdown
from .tables.table import as_rich as as_rich
from .tables.table import page as page
