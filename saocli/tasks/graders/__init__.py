"""Graders: from a reply's text to a score, run in worker processes that can be killed."""
