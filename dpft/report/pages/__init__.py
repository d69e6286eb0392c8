"""HTML pages that need nothing else: `dpft report`, and the frame that other pages share.

`find` says which runs are meant, `gather` reads one, `guarantee`, `curves`, `sections` and
`settings` turn what was read into parts, `one` and `several` make a page of them, and `frame`
and `svg` know how pages and curves look. ``docs/how-to/reports.md`` says what is on a page and why.
"""
