"""What a compiled program does: its operations, bytes and messages."""
