"""Weights on their way from trainer to engines: buckets in shared memory, hashes, the transaction.

    manifest = write_buckets(folder, version, named_tensors)      # trainer, rank 0
    for name, tensor in read_tensors(manifest): ...               # engine, zero-copy, each hash verified

`manifest` and `transaction` need no torch; `buckets` does.
"""
