"""Fixtures that every part of the suite may ask for; nothing here runs by itself."""

pytest_plugins = ["tests.grpcurl"]
