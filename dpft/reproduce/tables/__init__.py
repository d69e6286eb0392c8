"""Papers' tables next to recorded runs; nothing here reads data or loads a model."""
