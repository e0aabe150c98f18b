"""Writers of a result: JSON, JUnit XML, HTML, Markdown."""
