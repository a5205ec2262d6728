"""The command line: ``ien``, one file for each family of commands.

In reading order:

    errors.py        turns user errors into one-line messages for all commands
    commands.py      how all commands behave: errors in one line, -h, help that fits
    model_file.py    the model that path/to/code.py:build names, and its weights
    completion.py    what shells offer when TAB is pressed
    options.py       arguments and options that several commands share
    look.py          measure, doctor
    report.py        report: a page about runs or a model
    symmetry.py      symmetry
    labels.py        a table with the classes of images
    adapt.py         adapt
    export.py        export: a model as a file for other programs
    rows.py          list, show, table
    run.py           run, resume, status, demo
    train.py         train: a folder of your own images
    plot.py          plot: pictures of runs and records
    clips.py         which clips are there, and rotating ones written to disk
    data_sets.py     which data sets are there, and where to download them
    data.py          data: list, get, rot-otb
    track.py         track
    app.py           the app: every command in its panel

A command imports what it needs when it runs, so ``ien --help`` is quick and measuring somebody's
model loads neither data sets nor the training engine.
"""

from .app import app as app
