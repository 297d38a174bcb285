"""Is what a network has learned of use elsewhere? The paper's transfer tests."""
