"""Robot data made by simulation: what the paper gathered with robots that we do not have."""
