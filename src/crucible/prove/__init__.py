"""Prove: does a candidate compute the same function, the same gradients and the same side effects as its reference?"""
