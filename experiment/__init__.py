"""A run from settings to report: its folder, files, resuming, tables, figures and ablations."""
