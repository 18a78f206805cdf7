"""Benchmarks and load tests of Tandem."""
