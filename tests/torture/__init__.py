"""Torture: kill it, damage its files, fill its disk, and see that nothing is lost and nothing crashes.

Each file is one idea. Its functions try something many times and return a :class:`~.tally.Tally`; its tests
call them with small numbers, and ``make torture`` (``__main__.py``) with large ones.

In reading order:

    tally.py                       what was tried, and what went wrong
    child.py                       a process of its own, with limits of time and memory, that may be killed
    commands.py                    what is interrupted: commands, and what must come out of them
    test_file_operations.py        killed at every file operation
    test_signals.py                killed and interrupted at random moments, alone and under torchrun
    readers.py                     good files, and who reads them
    test_mutated_files.py          the same files with random damage
    test_hostile_files.py          files and options that somebody made on purpose
    test_hostile_names.py          markup, escape sequences and paths in names
    test_texts.py                  any text for everything that parses text
    test_failing_calls.py          an exception in the middle of a call leaves the model as it was
    test_memory.py                 too little memory, from the beginning and from a checkpoint
    test_full_disk.py              disks of several sizes that fill up
    test_exactness.py              quarter turns and flips are those of torch, bit for bit
    __main__.py                    all of it at full size, and the table in docs/reliability.md
"""
