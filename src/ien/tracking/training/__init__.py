"""Training of trackers: pairs of pictures, the losses of a step, and the test of a trained network.

In reading order:

    config.py      TrackingConfig: the settings of a run that trains a tracker
    pairs.py       pairs of an exemplar and a search image, drawn from clips
    losses.py      the logistic loss of responses, and both losses of exemplars and search images
    evaluate.py    scores, equivariance errors and costs of a trained tracker
    task.py        tracking as a kind of task of the training loop
"""
