"""Migration of training samples between hosts that hold them, when their speeds change for long.

Read `held_samples.py` first (who holds which samples, and trains on them when), then
`plan_moves.py` (which samples move, and what that saves). `migrator.py` connects them to a
training; `sample_mover.py` sends the samples over the links. The idea is that of D. Rosendo et al.
and T. Bouvier et al., who place the input data of a training by the speeds of the continuum's
resources. The package may import the core and the packages below it, from `specification/` to
`balancing/`.
"""
