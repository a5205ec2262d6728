"""What acts: groups of transformations. They need torch only.

similarity.py    rotation, flip and scale as exact fractions, and what they do to pixels
group.py         Group: its elements, sampling, the action on images and on feature maps
families.py      rotation, reflection, scale, custom, and group("rot4xflip")
members.py       how an element permutes the members of a feature group
"""
