"""Search as a tool for assistants: the Model Context Protocol over standard input and output."""
