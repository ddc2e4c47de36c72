"""The parts of the page of a model of several tasks."""
