"""`python -m holdfast` is the command `holdfast`."""

import sys

from holdfast.apps.cli.main import main

sys.exit(main())
