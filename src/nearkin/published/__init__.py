"""What the papers report, and which of it a run can be held against."""
