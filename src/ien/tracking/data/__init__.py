"""Clips to train and test trackers: frames, and a box in each.

boxes.py      rows x, y, w, h, checked
crops.py      squares of an image, resampled to pictures of one size
frames.py     numbered image files, and text files of numbers
clip.py       Clip: a sequence of frames with a box in each, and which frames are fit to train on
clips.py      folders of clips in the layouts of OTB and GOT-10k
rot_otb.py    a clip whose frames rotate
synthetic.py  generated clips, which need no data
sets.py       sets of clips by name, to train and to test
"""
