"""What runs inside a sandbox: standard library only, imported by a bare interpreter that sees no site-packages.

`supervisor` is process 1 there. It forks a `candidate` for each case and, where tests are code, a `checker` that
holds them; `remote` is what the two say to each other.
"""
