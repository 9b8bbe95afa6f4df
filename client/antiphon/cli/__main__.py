"""``python -m antiphon.cli``: the ``antiphon`` command where its script is not on the path."""

import sys

from antiphon.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
