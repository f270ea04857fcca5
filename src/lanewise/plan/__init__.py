"""From a graph to launches with byte places: schedule, arena, proof, report."""
