"""Where a gateway learns which pipelines and replicas there are: two files, or a cluster."""
