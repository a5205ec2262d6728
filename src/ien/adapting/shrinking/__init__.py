"""Smaller: remove the channels that a trained model needs least.

In reading order:

    channels.py       which layers write, pass on and read the same channels
    worth.py          what each member of a feature group does for a trained model
    budget.py         which members stay, for a number of channels or operations
    removal.py        the same model with smaller layers
    shrink.py         shrink: remove the members that a trained model needs least
"""
