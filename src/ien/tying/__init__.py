"""Beyond the paper: weights that are equivariant by construction, in an ordinary model.

In reading order:

    harmonics.py      patterns that rotate by any angle: circular harmonics on rings
    commuting.py      kernels between two feature groups that commute, from few numbers
    projection.py     any weight to the nearest that commutes; the formula stands here
    parametrized.py   what a tied layer is made of: parametrizations, norms that pool statistics
    detect.py         which feature groups a map rotates in: a pure function of maps
    wiring.py         which layers feed which, and the feature groups to choose for them
    plan.py           run the model, tie each layer just before it runs, check what it returns
    tie.py            make_equivariant, make_plain, plain_copy
"""
