"""Beyond the paper: weights that are equivariant by construction, in an ordinary model.

In reading order:

    harmonics.py      patterns that rotate by any angle: circular harmonics on rings
    commuting.py      kernels between two feature groups that commute with any rotation
    projection.py     any weight to the nearest that commutes; the formula stands here
    detect.py         which feature groups a map rotates in: a pure function of maps
    flow.py           the latest maps of a running model, and what they say about the next
    layouts.py        where the channels of a tensor are; names of layers, in settings and messages
    plan.py           run the model once, and tie each layer just before it runs
    untied.py         parameters that could break an equivariant model as they train
    start.py          start_equivariant: an equivariant model before its first step
    keep.py           keep_equivariant: steps that leave it so
    recommended.py    recommended: both at once, and the objective to train with
"""
