"""Augmentation of whole batches, with random parameters for each image.

Sample, then apply: `sample_x(n, ..., device)` draws one row of parameters for each image, and
`x(images, rows)` is a pure function of both. `geometry` moves pixels and `colour` changes them.
`policies` combines both into the views that a method declares. `ctaugment` learns the strength of
augmentations, and `mixing` mixes pairs of images.

In this package images are float32 in 0 .. 255. Nothing loops over images, waits for the device or
branches on a value, so a policy runs eagerly, compiled or inside a CUDA graph.
"""
