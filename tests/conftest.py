"""What every part of the suite shares; nothing here runs by itself."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.grpcurl", "tests.real_model"]

# A busy machine must not fail a test, and a green commit must stay green: `make fuzz` is where chance comes in.
STEADY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", parent=STEADY, derandomize=True)
settings.register_profile("fuzz", parent=STEADY, max_examples=3000)
settings.load_profile("repeatable")
