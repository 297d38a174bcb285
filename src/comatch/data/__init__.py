"""From files to batches: sources, splits, and pictures that live on the device."""
