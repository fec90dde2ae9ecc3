"""Encoded media of requests and answers, to and from the tensors that stages exchange."""
