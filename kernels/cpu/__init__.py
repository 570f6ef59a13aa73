"""Kernels for CPUs: loops over float32 arrays that numba compiles for the machine at hand.

They stand where torch's operations would make several passes over memory, or copy paged keys and values together
before they can be multiplied. Matrix products are not among them: those belong to the BLAS library that torch calls.
"""
