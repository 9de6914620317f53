"""Ordered bytes on disk or in memory behind one small protocol."""

from store.engine.protocol import Engine, Family, Snapshot, Storage, View, Write

__all__ = ["Engine", "Family", "Snapshot", "Storage", "View", "Write"]
