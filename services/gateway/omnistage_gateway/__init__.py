"""The gateway: speaks the OpenAI API and sequences each request over the stages."""
