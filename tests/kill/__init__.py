"""Kills every verb that writes, at its file operations and at random moments, and checks what `--resume` promises."""
