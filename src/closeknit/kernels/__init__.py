"""Fused kernels for a GPU, in Triton; what they compute is also there in plain torch."""
