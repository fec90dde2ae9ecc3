"""What the operator costs where no pod computes: the benchmark `omnistage bench operator`."""
