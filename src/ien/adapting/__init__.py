"""A model that is trained already: make it equivariant without training it again, or smaller.

In reading order:

    outputs.py        what a model returns for a rotated image, rotated back
    average.py        GroupAverage: exact, nothing is trained, as many passes as elements
    variation.py      small random changes to images that leave them upright
    rate.py           the learning rate of what is trained here
    orientation.py    which way up is an image: a small tied network learns it without labels
    canonicalize.py   Canonicalize: rotate the image upright, run the model once
    head.py           the features that a classifier's last layer reads
    batches.py        random batches of images, varied a little
    imitation.py      the loss of a copy that imitates the model on transformed images
    checkpoint.py     the state of an adaptation in a file, to go on from it later
    adapt.py          adapt: train a copy for some minutes, without labels
    comparison.py     the table of a comparison, and how it is printed
    tallies.py        what versions of a model answer under every element, counted batch by batch
    compare.py        before and after: agreement, accuracy, cost
    shrinking/        shrink: remove the channels that it needs least
"""
