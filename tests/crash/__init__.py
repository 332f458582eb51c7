"""Cuts the power at every file operation of every verb that writes, and checks that the command runs again."""
