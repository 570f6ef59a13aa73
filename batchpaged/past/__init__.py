"""Runs that are over: finding them, comparing two, their history, and deleting old ones."""
