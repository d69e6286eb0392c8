"""Papers' tables next to recorded runs.

`plan` composes the runs of a table, `record_index` finds their records, `cells` compares both with
the printed numbers and names the missing runs, `text_table` and `render` show the result. Nothing
here reads data or loads a model.
"""
