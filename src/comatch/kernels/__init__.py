"""Kernels for a GPU: a wide ResNet's training step in as few passes over memory as can be.

`block` puts together what the others do: `conv` (CUDA C++, in `conv3x3.cu`), `norm`, `stem` and
`shortcut` (Triton); `smooth` is the attention of the memory bank, `squares` scales images. Each
has a plain twin that it is tested against, on a CPU in the interpreter of Triton. See
docs/performance.md.
"""
