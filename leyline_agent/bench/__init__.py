"""Measurements of speed: each compares two things in one run and tells the ratio."""
