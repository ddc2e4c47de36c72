"""What the models of all products share: fits, folders, export, cards and runs in folders."""
