"""The data of the HTML pages of `dpft report`, whose markup is in ``dpft/report/templates``.

`dpft.sweep.find` says which runs are meant, `gather` reads one, `guarantee`, `curves`, `sections`
and `settings` make the data of its sections, and `one` and `several` render a page of them.
``docs/how-to/reports.md`` says what is on a page and why.
"""
