"""What is shown of runs: terminal, Markdown, HTML and cards."""
