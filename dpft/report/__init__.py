"""Views of runs: terminal, Markdown, HTML and cards."""
