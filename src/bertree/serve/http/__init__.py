"""Requests and answers: routes, checks, errors, logs and metrics."""
