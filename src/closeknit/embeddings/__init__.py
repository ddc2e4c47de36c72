"""Embeddings: a vector for each text, learnt from sentences, and scored on several tasks."""
