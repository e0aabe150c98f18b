"""The parts of online evaluation: labels told later, joined to logged answers, measured by day and slice."""
