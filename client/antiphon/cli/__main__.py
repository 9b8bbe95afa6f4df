"""``python -m antiphon.cli``: the ``antiphon`` command if its script is not on the path."""

import sys

from antiphon.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
