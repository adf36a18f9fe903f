"""What a run leaves behind and shows: metrics, trajectories, warnings, a timeline, a display, a report."""
