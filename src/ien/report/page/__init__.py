"""Pages: self-contained HTML files.

    html.py        fill a template: escaping, style and numbers
    measured.py    the page of one report, which ``ien.measure(...).save(folder)`` writes
    outputs.py     what a model returns: classes, pixels or values, and how far they change
    pictures.py    images, maps and masks as text that the page's script draws
    sweeps.py      what a slider goes through: all angles, or scale factors
    changing.py    which images change their prediction when they are moved, and where
    explorer.py    what the explorer shows: images and feature maps at all angles and scales
    headline.py    what a page says first: three large numbers and one sentence
    parts.py       what the two pages below share: curves, plots, geometry, a size that fits
    build.py       the page of runs, which ``ien report RUN`` writes
    model.py       the page of any model, which ``ien report code.py:build`` writes

The HTML, the style sheet and the explorer's script are in ``templates/``.
"""
