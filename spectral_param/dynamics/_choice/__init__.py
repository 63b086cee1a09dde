"""The choice: rows that are held out, the rule, its numbers, and the order of hidden states."""
