"""Encoders: loading, tokenising, pooling, heads, inference, and the settings for them."""
