"""``python -m dpft.cli.piped``: the command whose words stand on standard input, as a JSON list."""

from __future__ import annotations

import json
import sys

from dpft.cli.app import main

if __name__ == "__main__":
    sys.argv[1:] = json.load(sys.stdin)
    main()
