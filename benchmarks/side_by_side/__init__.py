"""The parts of step_times.py: its cases, its worker and its table."""
