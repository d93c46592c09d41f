"""calserve: serving ahead-of-time compiled language-model packages on NPU boards."""

__version__ = "0.1.0"
