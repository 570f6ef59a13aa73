"""Kernels for GPUs, in Triton: one folder each, with kernel.py, launch.py and the reference.py that it is tested against.

Nothing here is imported where no kernel is launched: triton is not there on every machine.
"""
