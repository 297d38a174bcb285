"""`comatch report`: run folders as tables."""
