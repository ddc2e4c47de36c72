"""Faster forward passes and updates, behind one engine that the training loop holds."""
