"""Parts of the benchmarks of the server: clients, servers, phases."""
