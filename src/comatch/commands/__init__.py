"""What the larger commands compute: one module or package a command."""
