"""The benchmark `omnistage bench transfer`: how fast a tensor gets from one process to another.

Two processes of their own move tensors in every way that the platform has, and in the plainest ways
that a machine has, beside one another; two real stages measure the hand-over of a small one.
"""
