"""`make demo-regions`: a region of real servers is drained, fails, is killed under calls, direct and through Envoy."""
