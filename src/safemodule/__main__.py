"""`python -m safemodule`."""

from __future__ import annotations

import sys

from safemodule._cli import main

sys.exit(main())
