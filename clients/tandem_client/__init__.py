"""Clients of Tandem: typed results over HTTP or gRPC, sync or async."""
