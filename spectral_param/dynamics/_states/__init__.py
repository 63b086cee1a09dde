"""Models whose states are hidden: a start by canonical variates, its refinement, the filter, the order."""
