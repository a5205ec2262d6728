"""Export: a trained model → a file that runs without ``ien``, checked before it is kept.

In reading order:

    formats.py    .onnx, .pt2 or .safetensors: what a suffix means and which packages it needs
    program.py    a module → torch.export's program; names the layer of what does not export
    write.py      a program or its weights → a file, with a header that says what is in it
    quantize.py   an ONNX file → the same in int8
    runtimes.py   a file → a module that runs it: onnxruntime, openvino or torch
    check.py      the model and its files side by side, under every element of a group
    result.py     Exported: what was written, as a table
    export.py     export: all of it
    card.py       a model card: what a file holds, in Markdown

A file of weights is read by :func:`ien.load`; the others by their own runtimes.
"""

from .runtimes import OnnxModel as OnnxModel
