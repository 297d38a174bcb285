"""Run folders and scores as tables that a person reads."""
