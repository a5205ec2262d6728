"""Tables: rows of runs beside the paper's numbers.

columns.py        the paper's numbers, columns, and the text of a cell
classifiers.py    accuracies and costs
agreement.py      accuracies beside how far predictions agree under the group
dice.py           Dice of segmentation, beside how predictions rotate with the image
layers.py         errors of each layer
notes.py          where the numbers come from
render.py         all of it on the terminal and as Markdown
"""
