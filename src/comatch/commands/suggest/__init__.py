"""Which pictures to label next. `choose` has the function; `table` loads no PyTorch."""
