"""The server: ingress, batching, traffic log, metrics, drain."""
