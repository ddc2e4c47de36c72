"""Text classifiers: settings, model, training and the scikit-learn estimator."""
