"""``python -m dpft.cli.piped``: the command whose words stand on standard input, as a JSON list."""

import json
import sys

from dpft.cli.app import main
from dpft.sweep.process import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    sys.argv[1:] = json.load(sys.stdin)
    main()
