"""Search as a tool for assistants: the Model Context Protocol on standard input and output."""
