"""OpenAI's wire shapes: pure functions between bytes of HTTP bodies and the gateway's own values."""
