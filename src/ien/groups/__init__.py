"""What acts: groups of transformations. They need torch only.

devices.py       small tables from the CPU to the device of the maps, without waiting
similarity.py    rotation, flip and scale as exact fractions, and what they do to pixels
targets.py       what they do to masks, boxes, points, vectors and angles
elements.py      an element: similarities and functions of the user's, one after another
acting.py        elements act on a batch of images, run as it is or traced
group.py         Group: its elements, sampling, the action on images, feature maps and targets
families.py      rotation, reflection, scale, custom, and group("rot4xflip")
members.py       how an element permutes the members of a feature group
"""
