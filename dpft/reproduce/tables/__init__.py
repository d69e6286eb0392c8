"""Papers' tables beside recorded runs.

`plan` says which runs a table needs, `record_index` which of them have records, `cells` puts both
beside the printed numbers with a verdict, `missing` names the missing commands, `render` shows it
all. Nothing here reads data or loads a model.
"""
