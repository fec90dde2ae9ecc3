"""What every component shares: ids, errors, deadlines, payloads, links, tensors and pipelines."""
