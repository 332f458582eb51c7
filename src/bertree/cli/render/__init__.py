"""Results as tables and lines on the terminal, a module for each kind."""
