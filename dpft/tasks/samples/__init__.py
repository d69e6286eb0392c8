"""Generated samples of the tasks' data, in their real file forms."""
