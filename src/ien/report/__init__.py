"""Records of runs as tables, plots and pages. Nothing here trains.

palette.py    one colour for each method
records.py    what a finished run leaves behind
rows.py       records that may be averaged, as a line of a table
opened.py     a network with images; a trained run with its network and its test images
tables/       accuracies, costs and errors beside the paper's
plots/        errors, angles, training and costs as pictures
page/         self-contained HTML pages
"""

from .records import Record as Record
from .records import collect as collect
from .records import read as read
from .rows import Row as Row
from .rows import summarise as summarise
from .tables.columns import PaperRow as PaperRow
from .tables.render import Part as Part
from .tables.render import Section as Section
from .tables.render import as_markdown as as_markdown
from .tables.render import as_rich as as_rich
from .tables.render import results_page as results_page
