"""Campaign: a scenario run at every combination of varied values."""
