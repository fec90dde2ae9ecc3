"""The HTTP doors.

The hot ones are ASGI applications of their own: Starlette's streaming response
halves the rate of server-sent events, and a body must not be read before it is admitted.
"""
