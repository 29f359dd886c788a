"""A whole run: its folder, its data, its scores, and a finished run put to use."""
