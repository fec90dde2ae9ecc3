"""Engines: the code that computes, one file or folder per foreign runtime."""
