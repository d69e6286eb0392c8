"""One run: set-up, the loop, the session around it, decoding and scoring."""
