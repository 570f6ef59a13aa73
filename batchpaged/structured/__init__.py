"""Constrained output: from what a pipeline or a row asks for to a grammar of llguidance. The engine follows it."""
