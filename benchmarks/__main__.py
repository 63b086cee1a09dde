"""``python -m benchmarks``: all cases of the CPU."""

from benchmarks.run import main

main()
