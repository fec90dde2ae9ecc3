"""Benchmarks of the platform itself: they start what they need, measure, and print JSON."""
