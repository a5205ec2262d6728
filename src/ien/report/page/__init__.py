"""Pages: self-contained HTML files.

    html.py        fill a template: escaping, style and numbers
    measured.py    the page of one report, which ``ien.measure(...).save(folder)`` writes
    explorer.py    what the explorer shows: test images and feature maps at all angles and scales
    build.py       the page of runs, which ``ien report`` writes

The HTML, the style sheet and the explorer's script are in ``templates/``.
"""
