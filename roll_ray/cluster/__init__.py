"""The Ray side of the runtime: session, placement groups, actors, metrics. Ray is imported below here only."""
