"""One module for each kind of input: what is watched of it, as named values, one for each row."""
