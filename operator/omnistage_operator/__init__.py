"""The operator: turns pipeline resources into workloads, and says why when it cannot."""
