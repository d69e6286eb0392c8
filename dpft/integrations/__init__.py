"""dpft inside other people's training loops."""
