"""Models: loading by name, building from scratch, tying, adapting and saving."""
