"""``dpft bench``: the cost of clipping, compared with non-private training and with peers."""
