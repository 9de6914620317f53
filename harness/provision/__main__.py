"""`python -m harness.provision` resolves ivy.xml anew and writes jars.lock from what came."""

from __future__ import annotations

from harness.provision.jars import write_lock

if __name__ == "__main__":
    write_lock()
