"""Transfer learning: how good a trained encoder's features are on other data (section 4.4)."""
