"""Why not more: which operations break quarter turns and flips, and at which sizes none does.

The doctor runs the model on tensors without data and keeps, for each tensor, which of its
dimensions are places of the image. ``docs/doctor.md`` explains how.

In reading order:

    dimensions.py         which parts of a dimension are rows and columns
    exactness.py          whether spatial steps commute with quarter turns and flips, tried on noise
    findings.py           Finding: reason, remedy, cost and shift of steps that are not exact
    facts.py              what is known of one tensor
    notes.py              what is known of one forward pass: findings, and steps still to be judged
    rules_rearrange.py    rules: views, slices, joins and elementwise operations
    rules_combine.py      rules: reductions, softmax, norms and matrix products
    rules_spatial.py      rules: convolutions, pools, resizes, padding, flips and rolls
    writes.py             what a tensor holds after a write into it, or into a view of it
    interpreter.py        sees each operation of a forward pass and applies its rule
    dry_run.py            the forward pass on fake tensors; the model is left as it was
    sizes.py              the nearest input sizes at which the model is exact
    doctor.py             doctor, Diagnosis: the whole of it, and its text
"""
