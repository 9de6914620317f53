"""Tests for stores of your own: `TestMyStore = conformance(MyStore)` in a pytest file is all it takes.

What a store is
---------------
A subclass of `store.state.protocol.StateStore` that is made with a `StoreContext` and is open from then on:

    class MyStore(StateStore):
        def __init__(self, context: StoreContext) -> None: ...

It keeps its files under `context.directory` (which it makes), or its rows in the engine that `context.open_engine()`
opens. Abstract, so always written: `name`, `persistent`, `is_open`, `restore_batch`, `is_empty`, `close`. All other
methods have the defaults of KIP-844 and KIP-892. What a store claims is what it is held to:

* `persistent()`: what `commit` returned for is there when the store is opened again, and after a SIGKILL too.
* `transactional()`: writes stay apart until `commit`, which is one atomic step. Then `commit`, `discard` and
  `recover` are its own.
* `manages_offsets()`: the offsets given to `commit` and `restore_batch` are kept in the same atomic step as the data,
  and `get_committed_offset` returns them. Under exactly once, a store without this or without transactions is
  rebuilt from its changelog after a crash.

What a store does besides
-------------------------
* Each write goes to `context.log_change(key, value, None)` first, if that is not None, and is not kept when it raises.
  With a cache that is when the write leaves it, and for all of them before `flush_cache` returns: `commit` comes after
  that of Kafka, and logs nothing. A time of None is that of the record being processed, so a cache passes the
  `context.record_time()` of the write on. `restore_batch` gets these records back, and does not log them again.
* One thread writes; the reading methods may be called from any thread at the same time.
* After `close`, reading, writing, `commit` and `restore_batch` raise (best `store.errors.StoreClosedError`), so a store
  whose `commit` would otherwise be the default still has one that checks this; closing again does nothing.

Running it
----------
    from store.testing.conformance import conformance
    from mystore import MyStore

    TestMyStore = conformance(MyStore)

`conformance` takes anything that makes the store from a context, so a store with parameters is a small function or a
`functools.partial`. Tests that ask for what a store does not claim are skipped, and say so.

A store with `get(key)` and `put(key, value)` over bytes is tested as a key-value store, with `range(lower, upper)`
too if it has one. A store of another kind is held to the part that all stores share.
"""

try:
    import pytest
except ModuleNotFoundError:  # `store.testing.driver` is for any test framework, and for none.
    pass
else:
    pytest.register_assert_rewrite("store.testing.conformance")
