"""Sentence encoders: settings, model, training, scores and the scikit-learn estimator."""
