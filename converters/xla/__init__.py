"""XLA profiles (TPU, and JAX on GPU and CPU): reading, understanding and converting them.

The dependency model of these traces is `stream`: a chip runs its program in order, so an
operation follows the one before it on its core, asynchronous transfers and memory copies follow
the operation that starts them, and the operation that completes them waits for them. What the
host does between programs is not modelled: the time between them is a gap.
"""
