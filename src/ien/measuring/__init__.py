"""How equivariant is a model, layer by layer?

In reading order:

    weights.py          the weights in a file, whatever they come wrapped in, loaded into a model
    image_folder.py     a folder of picture files as batches of tensors
    inputs.py           the user's images as checked batches; eval mode for the time of a block
    choose_layers.py    the layers to measure when the user names none
    floors.py           the error that the pixel grid or resampling alone would cause
    intervals.py        95 % confidence intervals, by Student's t and Wilson
    sums.py             running sums over images, from which means and intervals follow
    layer_report.py     what is measured of a layer, of an element and of the predictions
    report.py           Report: all of it, as a table, plot, Markdown, JSON or pandas
    summary.py          all sums of a measurement, and the report that follows from them
    measurement.py      the model on one batch after another: errors, floors and predictions, summed
    measure.py          measure, the public function
    metric.py           EquivarianceError: the same in one's own loop, batch by batch, in processes
    callbacks/          the same in Lightning and in Hugging Face's Trainer, every n epochs
"""
