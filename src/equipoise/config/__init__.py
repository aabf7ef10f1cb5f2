"""Typed options, their bounds and schedules."""
