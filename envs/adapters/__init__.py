"""Environments of other libraries, behind the protocol of `envs.task`. Their packages: `make envs`."""
