"""`python -m portal.mcp`, which `tclone mcp` becomes."""

import sys

from portal.mcp.stdio import main

sys.exit(main())
