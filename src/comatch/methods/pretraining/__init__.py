"""Methods that learn an encoder from images without labels: `comatch pretrain`."""
