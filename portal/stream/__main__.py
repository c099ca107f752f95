"""`python -m portal.stream`."""

import sys

from portal.stream.main import main

sys.exit(main())
