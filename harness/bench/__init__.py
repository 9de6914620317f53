"""Benchmarks. Every figure is a ratio of rates measured in turns within one run, or a size; none is remembered."""
