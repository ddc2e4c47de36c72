"""The training loop: tasks, batches, schedules, gradients, optimizer, sessions and checkpoints."""
