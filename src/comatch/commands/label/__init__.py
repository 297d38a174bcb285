"""`comatch label`: a local page to label pictures on. Nothing here loads PyTorch but `worker`."""
