"""The HTTP edge of Tandem: the OpenAI API over the Triton model ``tandem``."""
