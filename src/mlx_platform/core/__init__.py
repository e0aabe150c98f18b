"""What every room stands on: errors, verdicts, results, settings, clock, statistics and tensors."""
