"""The tensor service on the wire; generated modules appear beside the protos."""
