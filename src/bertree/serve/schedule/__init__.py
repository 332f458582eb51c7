"""Work of many requests, computed in batches by a few threads. Knows neither HTTP nor torch."""
