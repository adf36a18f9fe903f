"""Decisions as pure state machines: events in, actions out; no Ray, no torch, no I/O, no clock."""
