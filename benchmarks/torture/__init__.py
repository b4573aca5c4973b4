"""Made-up cases by the thousand against what must hold for all of them."""
