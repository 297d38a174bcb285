"""From files to batches: sources, splits, and images that live on the device."""
