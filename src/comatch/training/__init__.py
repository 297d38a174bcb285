"""From a recipe and a split to a finished run folder."""
