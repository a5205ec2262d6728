"""Beyond the paper: weights that are equivariant by construction, in an ordinary model.

In reading order:

    harmonics.py      patterns that rotate by any angle: circular harmonics on rings
    commuting.py      kernels between two feature groups that commute, from few numbers
    projection.py     any weight to the nearest that commutes; the formula stands here
    parametrized.py   what a tied layer is made of: parametrizations, norms that pool statistics
    slack.py          the free remainder of a weight, and its penalty
    orbits.py         where the group moves the numbers of a weight
    parts.py          the gradient in a weight, as a sum over parts of a batch
    listening.py      what training images say about a symmetry: when a remainder may learn
    detect.py         which feature groups a map rotates in: a pure function of maps
    wiring.py         which layers feed which, and the feature groups to choose for them
    planned.py        what is tied in a model, and whether its layers return what was planned
    planner.py        tie each layer just before it runs, and check what it returns
    plan.py           run the model with a planner, and see what could still break
    tied.py           what make_equivariant returns: its table, its slack and its checks
    tie.py            make_equivariant, make_plain, plain_copy
    folds.py          tied and ordinary networks on images that they have not seen
    symmetry.py       do these data have this symmetry?
"""
