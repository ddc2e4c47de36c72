"""Studies: objectives compared on the same folds of the same data sets, with statistics."""
