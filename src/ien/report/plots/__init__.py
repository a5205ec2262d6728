"""Plots: pictures of runs and reports, as PNG and SVG.

style.py       the look that all plots share, and how they are saved
axes.py        logarithmic axes of errors and factors, circles of angles
labels.py      names of lines and points
features.py    feature maps of an image in all orientations
errors.py      the relative error of each layer
angles.py      error and accuracy against the angle, or the factor
training.py    loss, accuracy, terms and multipliers by epoch
slack.py       how far the weights of each layer have left the symmetry
costs.py       accuracy against multiply-accumulates
"""
