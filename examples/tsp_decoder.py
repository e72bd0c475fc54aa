"""Train a pointer network that writes its mask in place: fails plain, works as a SafeModule.

Run it with `make demo` or `python -m safemodule demo`; the code is in `safemodule/_demo.py`.
"""

from __future__ import annotations

from safemodule._demo import main

if __name__ == "__main__":
    raise SystemExit(main())
