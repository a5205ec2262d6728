"""The paper: the equivariance loss. Read these files in this order, after ``groups/``.

feature_groups.py    FeatureGroups, group_pool, GroupPool
layers.py            names of layers, their weights and feature groups
modules.py           modules inside a model, tensors inside what it takes and returns
arguments.py         what a model takes besides images, repeated for their views
capture.py           a layer's output during one forward pass
error.py             maps of an image and of its view -> how far they are apart
reach.py             the error that resampling alone causes; targets too far below it
views.py             which elements of which groups a step compares, in which order
multipliers.py       targets in place of weights, reached by dual ascent
result.py            what the objective returns, and the targets of all views
objective.py         equivariance_loss, EquivarianceLoss
"""
