"""``python -m benchmarks``: measure what has no number yet, or a stale one."""

import sys

from benchmarks.runner import main

sys.exit(main())
