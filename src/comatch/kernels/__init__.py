"""GPU kernels that fuse a wide ResNet's training step to reduce memory traffic.

`block` combines the others: `conv` (CUDA C++, in `conv3x3.cu`), `norm`, `stem` and `shortcut`
(Triton). `smooth` is the attention of the memory bank, and `squares` resizes images. Each kernel is
tested against a reference implementation; on a CPU the Triton kernels run in Triton's interpreter.
See docs/performance.md.
"""
