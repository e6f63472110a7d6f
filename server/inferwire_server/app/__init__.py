"""The composition root and what it builds."""
