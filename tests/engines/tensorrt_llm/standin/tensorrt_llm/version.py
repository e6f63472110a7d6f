"""The version this stand-in behaves like."""

__version__ = "1.2.1"
