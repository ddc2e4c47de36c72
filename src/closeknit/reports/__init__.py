"""HTML reports: `study_page` for a study, `multitask_page` for a model of several tasks.

A page is one file that needs no network. Nothing here loads a model, so a report does not need
torch.
"""
