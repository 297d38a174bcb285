"""Augmentation of whole batches, each image with random parameters of its own.

Sample, then apply: `sample_x(n, ..., device)` draws one parameter row per image and
`x(images, rows)` is a pure function of both. `geometry` moves pixels, `colour` changes them, and
`policies` strings them together into the views that a method declares. `ctaugment` learns how
strong they may be, and `mixing` puts images between images.

Inside this room images are float32 in 0 .. 255. Nothing loops over images, waits for the
device or branches on a value, so a policy runs eagerly, compiled or inside a CUDA graph.
"""
