"""Parts of the simulator: workload, workers, the fleet's queue, dispatchers, measurements."""
