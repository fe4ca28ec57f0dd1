"""sao: Single-Rollout Asynchronous Optimization (arXiv 2607.07508) as a command-line tool."""

__version__ = "0.1.0"
