"""Framework hooks, one room each; whoever imports one needs its extra."""
