"""``python -m antiphon.cli``: the ``antiphon`` command where its script is not on the path."""

import sys

from antiphon.cli.main import main

sys.exit(main())
