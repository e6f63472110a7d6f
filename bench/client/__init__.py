"""What the resilient client costs, and what callers see while servers die under it."""
