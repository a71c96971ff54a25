"""Trace replay: recorded conversations under several arms."""
