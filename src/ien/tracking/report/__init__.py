"""What trackers reached, as tables and plots; built on ``ien.report``.

records.py    scores by test in the record of a run, with what a tracker must beat
tables.py     scores on every test, costs, and what must be beaten
plots.py      success and precision curves, and overlap by angle
"""
