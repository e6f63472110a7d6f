"""Generated from proto/inferwire/v1; do not edit."""
