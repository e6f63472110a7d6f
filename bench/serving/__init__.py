"""Measurements of serving: real processes on loopback, ratios of runs that take turns."""
