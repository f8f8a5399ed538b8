"""The compile pipeline: `target` is the interface of targets, `build` drives a compilation, `passes` lists the
passes."""
