"""A server that follows an alias: what it looks at, how it loads the next version, and when it switches."""
