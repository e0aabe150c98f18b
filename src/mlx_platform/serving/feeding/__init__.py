"""A server whose connections come from another process, and what that must know of it."""
