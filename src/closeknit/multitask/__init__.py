"""One encoder for several tasks: settings, data, heads, model, training and the estimator."""
