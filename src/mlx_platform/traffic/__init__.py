"""The traffic log: records, writer, segments and readers."""
