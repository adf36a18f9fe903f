"""The live decisions in virtual time: models of engines, rewards, training and weight updates drive the scheduler
objects of a live run through the same events and actions. Standard library and numpy; no clock but the virtual one."""
